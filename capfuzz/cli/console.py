"""Handlers of campaign events that write to the terminal: a live line where there is one, plain lines elsewhere."""

from __future__ import annotations

import shlex
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from capfuzz.campaign.events import Event, Finished, Found, Minimising, Progress, Started
from capfuzz.campaign.stats import stats_lines
from capfuzz.cli.errors import OutputClosed, output_error
from capfuzz.cli.text import counted, finding_text
from capfuzz.targets import get_target

PLAIN_SECONDS = 10.0


class _Console(Console):
    """What cannot be written is never a fault of the case, or of capfuzz: it ends the verb."""

    def on_broken_pipe(self) -> None:
        raise OutputClosed

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            raise output_error(error) from error


def console() -> Console:
    """Standard output. Printing raises `OutputClosed` and `OutputFailed`."""
    return _Console(highlight=False, markup=False, soft_wrap=True)


class ConsoleHandler:
    """Prints a campaign as it goes."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._live: Live | None = None
        self._next_plain = PLAIN_SECONDS
        self._started: Started | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Progress):
            self._progress(event)
        elif isinstance(event, Minimising):
            self._status(f"minimising {event.label} ...")
        elif isinstance(event, Found):
            self._found(event)
        else:
            self._finish(event)

    def close(self) -> None:
        """Takes the live line away, also when a run ends by an exception."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _begin(self, event: Started) -> None:
        self._started = event
        seed = "" if event.seed is None else f", seed {event.seed}"
        limits = [
            counted(event.max_examples, "case") if event.max_examples else "",
            f"{event.max_time:.3g} s" if event.max_time else "",
        ]
        budget = " or ".join(limit for limit in limits if limit) or "no limit"
        self._out.print(f"{event.target} ({event.implementation}) on {event.device}; {event.engine}{seed}, at most {budget}")
        if self._out.is_terminal:
            self._live = Live(Text("starting"), console=self._out, transient=True, refresh_per_second=8)
            self._live.start()

    def _status(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(text))

    def _progress(self, event: Progress) -> None:
        rate = event.cases / event.seconds if event.seconds else 0.0
        text = f"{counted(event.cases, 'case')}, {event.seconds:.1f} s, {rate:.0f}/s, {counted(event.findings, 'finding')}"
        self._status(text)
        if not self._out.is_terminal and event.seconds >= self._next_plain:
            self._next_plain = event.seconds + PLAIN_SECONDS
            self._out.print(text)

    def _found(self, event: Found) -> None:
        finding = event.finding
        self._out.print()
        self._out.print(finding_text(finding, get_target(finding.target), event.note))
        if event.path is not None:
            self._out.print(f"  {'entry':<11}{event.path}{'' if event.is_new else ' (already in the corpus)'}")
        if event.problem is not None:
            self._out.print(f"  {'not saved':<11}{event.problem}", style="red")
        self._out.print(f"  {'again':<11}{reproduce(finding.target, finding.implementation, finding.engine, finding.seed)}")
        self._out.print()

    def _finish(self, event: Finished) -> None:
        self.close()
        for name, values in event.coverage.items() if event.drawn is None else ():
            self._out.print(f"  {name:<16}{_summary(values)}")
        for line in () if event.drawn is None else stats_lines(event.drawn):
            self._out.print(line)
        what = counted(event.findings, "finding") if event.findings else "no findings"
        rate = event.cases / event.seconds if event.seconds else 0.0
        ending = ", interrupted" if event.interrupted else ""
        ending = f", all {counted(event.cases, 'combination')}" if event.exhausted else ending
        self._out.print(f"{what}: {counted(event.cases, 'case')} in {event.seconds:.1f} s ({rate:.0f}/s){ending}")


def reproduce(target: str, implementation: str, engine: str, seed: int | None) -> str:
    """The command that runs the same campaign again."""
    kind, _, name = implementation.partition(":")
    words = ["capfuzz", "run", target]
    if kind != "shipped":
        words += ["--variant" if kind == "variant" else "--impl", name]
    if engine != "hypothesis":
        words += ["--engine", engine]
    if seed is not None:
        words += ["--seed", str(seed)]
    return shlex.join(words)


def _summary(values: list[int | str]) -> str:
    if all(isinstance(v, int) for v in values) and len(values) > 8:
        return f"{len(values)} values from {values[0]} to {values[-1]}" + (", 0 included" if 0 in values else "")
    return ", ".join(str(v) for v in values)
