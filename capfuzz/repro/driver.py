"""What a script does with an implementation and its inputs: the steps of the check that lead to one verdict, as source.

Here is what every script shares, and how a wrong eager call is shown. `graphs` captures and replays, `runners` lets the
implementation do that itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import OUT_OF_MEMORY, SIMPLY, Cause, Drive, Feed, Verdict
from capfuzz.repro.inputs import PLACE, arguments_text
from capfuzz.repro.source import Source

HANG_SECONDS = 10
EVERYTHING = "repr((output, given))"
_POINTERS = {"as_strided", "data_ptr", "set_", "storage", "untyped_storage", "triton"}  # who names these looks around values
_RANDOM = re.compile(r"rand|dropout|bernoulli|multinomial|normal|exponential|geometric|cauchy|poisson|uniform_")
# Every name that a script binds beside the implementation; one that the implementation binds too is changed.
_TEXT = "\x00"  # in front of a word that is no name
_OWN = re.compile(
    r"(?<![.\w\x00])(Poison|STATE|after|answer|arguments|before|beside|buffers|call|child|device|differs|eager|ended|error|expected"
    r"|file|given|graph|held|junk|kept|larger|left|limit|name|number|order|other|output|place|pool|prepared|refill|replay|run"
    r"|runner|second|shown|size|static|status|step|touched|value)\b"
)

_POISON = '''\
class Poison(TorchDispatchMode):
    """Fills memory that nobody has written yet, in eager with another value than in the graph: luck hides nothing."""
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        filler = 0 if torch.cuda.is_current_stream_capturing() else 85
        return result.fill_(filler) if "empty" in str(function) else result
'''


@dataclass(frozen=True)
class Driver:
    """How an implementation is driven to its fault.

    `look` is an expression for what goes wrong, made of `output` and `given`, what a call returned and was given; `where` is
    the run in which the check has seen it. `expected` is for wrong eager answers: what `look` should give, one a feed.
    """

    feeds: Sequence[Feed]
    source: Source
    verdict: Verdict
    cause: str | None
    message: str
    sim: bool
    look: str = EVERYTHING
    where: str = ""
    expected: Sequence[str] = ()
    drive: Drive = SIMPLY

    @property
    def imports(self) -> list[str]:
        """The import lines that the text needs."""
        lines = {"sys", "torch", *({"capfuzz"} if self.sim else set())}
        used = "\n".join(self.text())
        lines |= {name for name in ("faulthandler", "gc", "os", "time", "traceback") if re.search(rf"(?<![.\w]){name}\.", used)}
        poison = ["from torch.utils._python_dispatch import TorchDispatchMode"] if self._poisons else []
        return [*(f"import {name}" for name in sorted(lines)), *poison]

    def text(self) -> list[str]:
        """Functions, and last the statements that run them."""
        lines = self.main()
        if any("repr(" in line for line in lines):
            lines.insert(0, "torch.set_printoptions(threshold=sys.maxsize)")
        lines = [*self._beginning(), *lines]
        used = set(re.findall(r"\w+", "\n".join(lines)))
        functions = {
            "run": self._run_text(),
            "arguments": self._making("arguments", self.feeds),
            "other": self._making("other", [self.drive.second or self.feeds[-1]]),
            "larger": self._making("larger", [self.drive.larger or self.feeds[-1]]),
            "refill": self._refill_text(),
        }
        needed = [text for name, text in functions.items() if f"{name}(" in "\n".join(lines) and name in used]
        parts = [_POISON] if self._poisons else []
        parts += [PLACE] if any("place(" in text for text in [*needed, *lines]) else []
        parts += [*needed, "\n".join(lines)]
        # The implementation's own functions have placeholders by now: their names stay.
        names = {"FIRST": self.source.names[0], "LAST": self.source.names[-1]}
        taken = self.source.bound
        renamed = [_OWN.sub(lambda name: f"{name[0]}_" if name[0] in taken else name[0], part) for part in parts]
        named = [re.sub(r"\b(FIRST|LAST)\b", lambda name: names[name[0]], part) for part in renamed]
        return [part.replace(_TEXT, "").strip() for part in named]

    def main(self) -> list[str]:
        """The statements, for a fault of an eager call."""
        if self.cause == Cause.OUT_OF_BOUNDS:
            return self._out_of_bounds()
        if self.verdict is Verdict.NONDETERMINISTIC:
            return self._nondeterministic()
        return self._eager_error() if self.verdict is Verdict.EAGER_ERROR else self._wrong_answer()

    # -- pieces --------------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        return f"{self.verdict.value}:{self.cause}" if self.cause else self.verdict.value

    @property
    def _two_parts(self) -> bool:
        return len(self.source.names) == 2

    @property
    def _several(self) -> bool:
        return len(self.feeds) > 1

    @property
    def _poisons(self) -> bool:
        """Whether the script fills memory: the simulated device does it by itself."""
        return self.cause == Cause.UNWRITTEN_OUTPUT and not self.sim

    @property
    def _state(self) -> list[str]:
        return [name for name, value in self.feeds[0].items() if isinstance(value, Argument) and value.is_state]

    @property
    def _hosts(self) -> list[str]:
        arguments = {name: value for name, value in self.feeds[0].items() if isinstance(value, Argument)}
        return [name for name, value in arguments.items() if value.space is not Space.DEVICE]

    @property
    def _order(self) -> str:
        last = len(self.feeds) - 1
        return str((*range(last + 1), last, 0) if last else (0, 0))

    def _arguments(self, feeds: Sequence[Feed]) -> str:
        guarded = self.cause == Cause.OUT_OF_BOUNDS or bool(_POINTERS & self.source.words)
        return arguments_text(feeds, guarded)

    def _making(self, name: str, feeds: Sequence[Feed]) -> str:
        made = self._arguments(feeds).replace("\n", "\n    ")
        return f"def {name}({'step' if len(feeds) > 1 else ''}):\n    return {made}"

    def _made(self, step: str) -> str:
        return f"arguments({step if self._several else ''})"

    def _call(self, given: str) -> str:
        """One eager call."""
        return f"run({given})" if self._two_parts or self._poisons else f"LAST(**{given})"

    def _run_text(self) -> str:
        call = f"LAST(FIRST({self._mode('EAGER')}, **given), **given)" if self._two_parts else "LAST(**given)"
        lines = ["    with Poison():", f"        return {call}"] if self._poisons else [f"    return {call}"]
        return "\n".join(["def run(given):", *lines])

    def _mode(self, name: str) -> str:
        return f"Mode.{name}" if "Mode" in self.source.words else f'"{name.lower()}"'

    def _seed(self, step: str) -> list[str]:
        """Of every call, as the check has it, where random numbers are drawn."""
        seed = f"11 + {step}" if self._several and not step.isdigit() else "11"
        return [f"torch.manual_seed({seed})"] if any(map(_RANDOM.search, self.source.words)) else []

    def _each_step(self, lines: Sequence[str]) -> list[str]:
        return [f"for step in range({len(self.feeds)}):", *indented(lines)] if self._several else [*lines]

    def _refill(self, step: str, given: str = "static", kept: bool = False) -> str:
        return f"refill({', '.join([given, *([step] if self._several else []), *(['STATE'] if kept and self._state else [])])})"

    def _refill_text(self) -> str:
        parameters = ["static", *(["step"] if self._several else []), *(["kept=()"] if self._state else [])]
        lines = copying(self._made("step"), "static", "kept" if self._state else "")
        return "\n".join([f"def refill({', '.join(parameters)}):", *indented(lines)])

    def _verdict(self) -> list[str]:
        return [f'print("{self.label}" if differs else "equivalent")', *self._leave("differs")]

    def _leave(self, status: str = "") -> list[str]:
        leave = [f"sys.exit({status})"] if status else []
        return ["device.__exit__(None, None, None)", *leave] if self.sim else leave

    def _guarded(self, lines: Sequence[str], verdict: str, caught: str) -> list[str]:
        """An exception is the fault."""
        says = (
            f'print("{verdict}")'
            if verdict == Verdict.DANGLING_BUFFER.value
            else f'print(f"{verdict}:{{type(error).__name__}}")'
        )
        shows = ["traceback.print_exception(error, file=sys.stdout)", says, *self._leave("1")]
        return ["try:", *indented(lines), f"except {caught} as error:", *indented(shows)]

    # -- faults of eager calls -----------------------------------------------------------------------------------------

    def _wrong_answer(self) -> list[str]:
        """Eager beside what was expected."""
        call = [*self._seed("step"), f"output = {self._call('given')}", f"eager = {self.look}"]
        if not self._several:
            lines = [f"given = {self._arguments(self.feeds)}", *call, f"expected = {self.expected[0]}"]
            return [*lines, self._says("", "expected", "eager"), "differs = eager != expected", *self._verdict()]
        lines = ["expected = [", *indented([f"{text}," for text in self.expected]), "]", "differs = False"]
        says = self._says(", inputs {step}", "expected[step]", "eager")
        each = [f"given = {self._made('step')}", *call, says, "differs |= eager != expected[step]"]
        return [*lines, *self._each_step(each), *self._verdict()]

    def _nondeterministic(self) -> list[str]:
        each = [f"given = {self._made('step')}", *self._seed("step"), f"output = {self._call('given')}"]
        each.append(f"eager.append({self.look})")
        says = self._says(", the same inputs twice", "eager[0]", "eager[-1]", "first", "second")
        loop = f"for step in {(*range(len(self.feeds)), 0)}:"
        return ["eager = []", loop, *indented(each), says, "differs = eager[0] != eager[-1]", *self._verdict()]

    def _eager_error(self) -> list[str]:
        run = [*self._seed("step"), f'print("eager:", {self._call(self._made("step"))})', "torch.cuda.synchronize()"]
        tried = self._guarded(run, "eager_error", "(Exception, SystemExit)")
        return [f"for step in {(*range(len(self.feeds)), 0)}:", *indented(tried), 'print("equivalent")', *self._leave()]

    def _out_of_bounds(self) -> list[str]:
        """The cells around the values: they hold what they held before."""
        each = [
            f"static = {self._made('step')}",
            "buffers = {name: value for name, value in static.items() if isinstance(value, torch.Tensor)}",
            "for name, value in buffers.items():",
            "    size = value.untyped_storage().nbytes() // value.element_size()",
            "    buffers[name] = value.as_strided((size,), (1,), 0)",
            "before = {name: value.tolist() for name, value in buffers.items()}",
            self._call("static"),
            f"{self._refill('step')}  # what still differs lies around the values",
            "for name, value in buffers.items():",
            "    if value.tolist() != before[name]:",
            r"""        print(f"buffer {name} and the cells around it\n  before {before[name]}\n  after  {value.tolist()}")""",
            "        differs = True",
        ]
        return ["differs = False", *self._each_step(each), *self._verdict()]

    # -- text ----------------------------------------------------------------------------------------------------------

    def _says(self, where: str, left: str, right: str, left_name: str = "", right_name: str = "") -> str:
        """A statement that prints two sides below each other; `where` follows what is looked at."""
        names = left_name or left.partition("[")[0], right_name or right.partition("[")[0]
        width = max(map(len, names))
        title = self.look.removesuffix(".tolist()").replace('"', "'") if self.look != EVERYTHING else "everything"
        title = re.sub(r"^given\['(\w+)'\]$", r"buffer \1", title)
        sides = [f"  {_TEXT}{name:<{width}} {{{side}}}" for name, side in zip(names, (left, right), strict=True)]
        return rf'''print(f"{title}{where}\n{sides[0]}\n{sides[1]}")'''

    def _beginning(self) -> list[str]:
        lines = [f"STATE = {tuple(self._state)}"] if self._state else []
        if self.verdict is Verdict.HANG:
            lines.append('print("hang", flush=True)  # if nothing follows')
            lines.append(f"faulthandler.dump_traceback_later({HANG_SECONDS}, exit=True)")
        return [*lines, *(self._parent() if self.verdict is Verdict.CRASH else [])]

    def _parent(self) -> list[str]:
        """The statements go on in a child; what becomes of it is seen here."""
        wait = ["status = os.waitpid(child, 0)[1]"]
        if self.cause == OUT_OF_MEMORY:
            wait = [
                'limit = os.sysconf("SC_AVPHYS_PAGES") // 2',
                "while not (ended := os.waitpid(child, os.WNOHANG))[0]:",
                '    with open(f"/proc/{child}/statm") as file:',
                "        if int(file.read().split()[1]) > limit:",
                "            os.kill(child, 9)",
                "    time.sleep(0.05)",
                "status = ended[1]",
            ]
        says = rf"""print(f"the process ended with status {{status}}\n{self.label}" if status else "equivalent")"""
        return ["if child := os.fork():", *indented([*wait, says, *self._leave("status != 0")])]


def indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line.replace("\n", "\n    ") for line in lines]


def copying(source: str, into: str, kept: str = "") -> list[str]:
    """Copies the contents of new arguments into buffers, but for those that `kept` names."""
    unless = f" and name not in {kept}" if kept else ""
    loop = f"for name, value in {source}.items():"
    return [loop, f"    if isinstance(value, torch.Tensor){unless}:", f"        {into}[name].copy_(value)"]
