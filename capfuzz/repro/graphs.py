"""Scripts that capture and replay. The one place that knows in which order: the plain one, and what a schedule adds to it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from capfuzz.devices import Rule
from capfuzz.differential import Cause, Schedule, Verdict
from capfuzz.repro.driver import Driver, copying, indented
from capfuzz.repro.literals import literal

# What an error says that breaks the rule; another one is known by its own first line.
_TELLING = {
    Rule.HOST_COPY: "graph capture unless",
    Rule.SYNCHRONIZATION: "operation not permitted",
    Rule.UNJOINED_STREAM: "unjoined work",
}


def capture_error(cause: str | None, message: str, label: str) -> list[str]:
    """What is said of an exception called `error` that ended a capture."""
    telling = literal(_TELLING.get(Rule(cause), message))
    return [
        'while "previous error during capture" in str(error) and error.__context__:',
        "    error = error.__context__  # torch.cuda.graph masks the cause",
        "traceback.print_exception(error, file=sys.stdout)",
        f'print("{label}" if {telling} in str(error) else "another capture error")',
    ]


class Graphs(Driver):
    """A function, or two parts, captured and replayed by the script."""

    def main(self) -> list[str]:
        if self.verdict is Verdict.CAPTURE_ERROR:
            return self._capture_error()
        if self.where == "warm-up without new inputs":
            return self._warm_ups_differ()
        return self._layouts_differ() if self.where == "eager" else self._replays()

    # -- pieces --------------------------------------------------------------------------------------------------------

    @property
    def _schedule(self) -> Schedule:
        return self.drive.schedule

    @property
    def _beside(self) -> bool:
        return self._schedule.second != "none"

    @property
    def _refills_often(self) -> bool:
        """Whether the static buffers must be what they were when the capture begins: else only a replay looks at them."""
        return self._two_parts or bool(self._hosts) or bool(self._state)

    def _look(self, output: str, given: str) -> str:
        return re.sub(r"\b(output|given)\b", lambda name: {"output": output, "given": given}[name[0]], self.look)

    def _warm_up(self, prints: bool = False) -> list[str]:
        """The static buffers are made, and the implementation runs on them."""
        times, lines = self._schedule.warm_ups, [f"static = {self._made('0')}", *self._seed("0")]
        call = self._call("static")
        if prints and times == 1:
            lines.append(f'print("eager:", {call})  # warms up, too')
        else:
            lines += self._often(times) if times > 1 else [f"{call}  # to warm up"]
        return [*lines, *([self._refill("0")] if self._refills_often else [])]

    def _often(self, times: int, then: Sequence[str] = ()) -> list[str]:
        """Warm-ups: of two parts the first one prepares for all."""
        poisoned = self._poisons and not self._two_parts
        call = "LAST(prepared, **static)" if self._two_parts else "run(static)" if poisoned else "LAST(**static)"
        each = [f"output = {call}", *then] if then else [call]
        prepared = [f"prepared = FIRST({self._mode('EAGER')}, **static)"] if self._two_parts else []
        lines = [*prepared, f"for _ in range({times}):  # to warm up", *indented(each)]
        return ["with Poison():", *indented(lines)] if self._poisons and self._two_parts else lines

    def _capture(self, graph: str, output: str, static: str) -> list[str]:
        opened = f"torch.cuda.graph({graph}{', pool=pool' if self._beside else ''}){', Poison()' if self._poisons else ''}"
        called = f"{output} = " if output else ""
        made = f"{graph} = torch.cuda.CUDAGraph()"
        if not self._two_parts:
            return [made, *self._seed("0"), f"with {opened}:", f"    {called}LAST(**{static})"]
        prepared = f"prepared = FIRST({self._mode('CAPTURE')}, **{static})"
        return [made, prepared, *self._seed("0"), f"with {opened}:", f"    {called}LAST(prepared, **{static})", "del prepared"]

    def _second(self) -> list[str]:
        """Another graph in the same pool."""
        warm = [*self._seed("0"), self._call("other()")]
        return ["beside = other()", *warm, *self._capture("second", "shown", "beside")]

    def _junk(self) -> str:
        made = '[torch.full((512,), 85, dtype=torch.uint8, device="cuda") for _ in range(999)]'
        return f"junk = {made}  # takes what is free"

    @property
    def _watches_junk(self) -> bool:
        """Whether the script takes what is free before each replay: on a GPU nothing says that a graph uses it."""
        return self.verdict is Verdict.DANGLING_BUFFER and not self.sim

    def _touched(self) -> list[str]:
        if not self._watches_junk:
            return []
        says = 'print(f"the replay has written to {touched} blocks that were free before")'
        return ["touched = int((torch.stack(junk) != 85).any(1).sum())", says, "differs |= touched > 0"]

    # -- captures ------------------------------------------------------------------------------------------------------

    def _capture_error(self) -> list[str]:
        cold = self._schedule.is_cold
        caught = "(Exception, SystemExit)" if self.cause == Rule.HOST_EXCEPTION else "Exception"
        eager = [*self._seed("step"), f'print("eager:", {self._call(self._made("step"))})']
        prints = not self._several and self._schedule.warm_ups == 1
        before = [] if prints else self._each_step(eager)
        lines = [f"static = {self._made('0')}"] if cold else [*before, *self._warm_up(prints)]
        captures = self._capture("graph", "", "static")
        if self._beside and self._schedule.second_dies and not cold:
            captures = [*self._second(), *captures]
        elif self._beside:
            captures += self._second()
        lines += ["pool = torch.cuda.graph_pool_handle()"] if self._beside else []
        if not self._beside:
            lines.append(captures.pop(0))
        says = capture_error(self.cause, self.message, self.label)
        says[-1:-1] = self._each_step(eager) if cold else []
        tried = ["try:", *indented(captures), f"except {caught} as error:", *indented([*says, *self._leave("1")])]
        return [*lines, *tried, 'print("equivalent")', *self._leave()]

    # -- before any graph ----------------------------------------------------------------------------------------------

    def _warm_ups_differ(self) -> list[str]:
        before = self._each_step([*self._seed("step"), self._call(self._made("step"))])
        warm = self._often(self._schedule.warm_ups, [f"eager.append({self._look('output', 'static')})"])
        says = self._says(", warm-ups with the same inputs", "eager[0]", "eager[1:]", "first", "later")
        differs = "differs = any(value != eager[0] for value in eager)"
        return [*before, f"static = {self._made('0')}", "eager = []", *self._seed("0"), *warm, says, differs, *self._verdict()]

    def _layouts_differ(self) -> list[str]:
        each = [*self._seed("0"), f"output = {self._call('given')}", f"eager.append({self.look})"]
        lines = ["eager = []", f"for given in ({self._contiguous('0')}, {self._made('0')}):", *indented(each)]
        says = self._says("", "eager[0]", "eager[1]", "contiguous", "views")
        return [*lines, says, "differs = eager[0] != eager[1]", *self._verdict()]

    def _contiguous(self, step: str) -> str:
        value = "value.contiguous() if isinstance(value, torch.Tensor) else value"
        return f"{{name: {value} for name, value in {self._made(step)}.items()}}"

    # -- replays -------------------------------------------------------------------------------------------------------

    def _replays(self) -> list[str]:
        """Eager, capture, replays: what goes wrong, side by side."""
        schedule = self._schedule
        lines = ["pool = torch.cuda.graph_pool_handle()"] if self._beside else []
        if schedule.is_cold:
            lines += [f"static = {self._made('0')}", *self._capture("graph", "output", "static")]
            lines += [*self._left(), *self._eager_before(), *self._seed("0"), f"{self._call(self._made('0'))}"]
        else:
            lines += [*self._eager_before(), *self._warm_up()]
            lines += self._second() if self._beside and schedule.second_dies else []
            lines += [*self._capture("graph", "output", "static"), *self._left()]
        lines += self._compared_after_the_capture()
        if self._beside and schedule.second_dies and not schedule.is_cold:
            lines += ["second.reset()", "del second, shown"]
        elif self._beside:
            lines += [*self._second(), *self._eager_of_the_other()]
        if schedule.churns:
            lines += ["gc.collect()", *([self._junk(), "del junk"] if not self.sim else [])]
        lines += [f"{self._call('larger()')}  # a larger batch, in eager"] if schedule.grows else []
        lines += self._eager_in_turn() if self._state else []
        return [*lines, *self._loop(), *self._verdict()]

    def _eager_before(self) -> list[str]:
        """What each replay must show: a fresh eager call with the same inputs."""
        if self._state:
            return self._each_step([*self._seed("step"), self._call(self._made("step"))])
        relaid = self._schedule.eager_layout == "contiguous"
        made = self._contiguous("step") if relaid else self._made("step")
        if self.look.startswith("output") and not self._seed("0") and not relaid:
            looked = self._call(made) + self.look.removeprefix("output")
            return [f"eager = [{looked} for step in range({len(self.feeds)})]"] if self._several else [f"eager = {looked}"]
        each = [f"given = {made}", *self._seed("step"), f"output = {self._call('given')}".replace("output", "answer")]
        look = self._look("answer", "given")
        if self._several:
            return ["eager = []", *self._each_step([*each, f"eager.append({look})"])]
        return [*each, f"eager = {look}"]

    def _eager_in_turn(self) -> list[str]:
        """What each replay must show, for an op with state: eager on other buffers, as often."""
        each = [self._refill("step", "given", kept=True), *self._seed("step"), f"answer = {self._call('given')}"]
        each.append(f"eager.append({self._look('answer', 'given')})")
        return ["eager = []", f"given = {self._made('0')}", f"for step in {self._order}:", *indented(each)]

    def _eager_of_the_other(self) -> list[str]:
        if "other graph" not in self.where or "while" in self.where:
            return []
        lines = ["given = other()", *self._seed("0"), f"answer = {self._call('given')}"]
        return [*lines, f"expected = {self._look('answer', 'given')}"]

    @property
    def _looks_after_the_capture(self) -> bool:
        return self.cause == Cause.HOST_STATE and self.look.startswith("given")

    def _left(self) -> list[str]:
        return [f"left = {self._look('output', 'static')}"] if self._looks_after_the_capture else []

    def _compared_after_the_capture(self) -> list[str]:
        """What capturing did to a host buffer must be what eager did to it."""
        if not self._looks_after_the_capture or self._state:
            return ["differs = False"]
        first = "eager[0]" if self._several else "eager"
        return [self._says(", after the capture", first, "left", "eager", "static"), f"differs = left != {first}"]

    def _loop(self) -> list[str]:
        schedule = self._schedule
        each = [f"if number:\n    {self._call(self._made('order[number - 1]'))}"] if schedule.eager_between else []
        each += [self._refill("step", kept=True)] if self._refills_often else copying(self._made("step"), "static")
        replay = [f"FIRST({self._mode('REPLAY')}, **static)"] if self._two_parts else []
        replay += [self._junk()] if self._watches_junk else []
        replay += [*self._seed("step"), "graph.replay()", f"replay = {self._look('output', 'static')}"]
        compared = [*self._compared(), *self._touched()]
        if self._beside and not (schedule.second_dies and not schedule.is_cold):
            replay += copying("other()", "beside", "STATE" if self._state else "")
            replay += [f"FIRST({self._mode('REPLAY')}, **beside)"] if self._two_parts else []
            replay += [*self._seed("0"), "second.replay()"]
            replay.append(
                f"after = {self._look('shown', 'beside') if 'of the other' in self.where else self._look('output', 'static')}"
            )
        if self.verdict is Verdict.REPLAY_ERROR:
            replay = self._guarded(replay, "replay_error", "(Exception, SystemExit)")
        elif self.verdict is Verdict.DANGLING_BUFFER:
            replay = self._guarded(replay, "dangling_buffer", "RuntimeError")
        numbered = bool(self._state) or schedule.eager_between
        lines = [f"order = {self._order}"] if schedule.eager_between else []
        over = "order" if schedule.eager_between else self._order
        head = f"for number, step in enumerate({over}):" if numbered else f"for step in {over}:"
        return [*lines, head, *indented([*each, *replay, *compared])]

    def _compared(self) -> list[str]:
        where = ", inputs {step}" if self._several else ", replay"
        if "while the other graph ran" in self.where:
            return [
                self._says(f"{where}, held while the other graph ran", "replay", "after", "before"),
                "differs |= after != replay",
            ]
        if "of the other graph" in self.where:
            return [self._says(", the other graph", "expected", "after", "eager", "replay"), "differs |= after != expected"]
        eager = "eager[number]" if self._state else "eager[step]" if self._several else "eager"
        return [self._says(where, eager, "replay"), f"differs |= replay != {eager}"]
