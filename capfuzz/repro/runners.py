"""Scripts for implementations that capture and replay by themselves: the script calls them as a server does."""

from __future__ import annotations

from collections.abc import Sequence

from capfuzz.devices import Rule
from capfuzz.differential import Verdict
from capfuzz.repro.driver import indented
from capfuzz.repro.graphs import Graphs, capture_error


class Runners(Graphs):
    """A runner: `FIRST` answers eagerly, `LAST` makes a callable that answers through graphs of its own."""

    @property
    def _two_parts(self) -> bool:
        return False

    def _call(self, given: str) -> str:
        return f"run({given})" if self._poisons else f"FIRST(**{given})"

    def _run_text(self) -> str:
        return super()._run_text().replace("LAST", "FIRST")

    def main(self) -> list[str]:
        """Every step's inputs, one call after another; eager beside each."""
        lines = [] if self._state else self._eager_before()
        lines += self._eager_in_turn() if self._state else []
        if self._sees_others:
            lines += ["given = other()", *self._seed("0"), f"answer = {self._call('given')}"]
            lines.append(f"expected = {self._look('answer', 'given')}")
        lines += ["kept = {}"] if self._state else []
        lines += ["runner = LAST()", *(["held = None"] if self._holds else []), "differs = False"]
        each = self._between()
        each += [*self._given(), *([self._junk()] if self._watches_junk else [])]
        each += self._raising([*self._seed("step"), "output = runner(**given)"])
        each += [*self._compared(), *self._touched()]
        used = "\n".join(each)
        order = "order" if "order[" in used else self._order
        lines += [f"order = {self._order}"] if order == "order" else []
        head = f"for number, step in enumerate({order}):" if "number" in used else f"for step in {order}:"
        return [*lines, head, *indented(each), *self._verdict()]

    @property
    def _holds(self) -> bool:
        return "held over the next call" in self.where

    @property
    def _sees_others(self) -> bool:
        return "(other inputs)" in self.where

    def _given(self) -> list[str]:
        """New buffers for each call; state is in the same ones."""
        if not self._state:
            return [f"given = {self._made('step')}"]
        return [f"given = {{**{self._made('step')}, **kept}}", "kept = {name: given[name] for name in STATE}"]

    def _eager_in_turn(self) -> list[str]:
        each = [*self._given(), *self._seed("step"), f"answer = {self._call('given')}"]
        each.append(f"eager.append({self._look('answer', 'given')})")
        return ["eager, kept = [], {}", f"for step in {self._order}:", *indented(each)]

    def _between(self) -> list[str]:
        """What a server does between the first call and the second, and between any two."""
        schedule = self.drive.schedule
        between = ["gc.collect()", *([self._junk(), "del junk"] if not self.sim else [])] if schedule.churns else []
        between += [f"{self._call('larger()')}  # a larger batch, in eager"] if schedule.grows else []
        lines = ["if number == 1:", *indented(between)] if between else []
        return [
            *lines,
            *(["if number:", f"    {self._call(self._made('order[number - 1]'))}"] if schedule.eager_between else []),
        ]

    def _raising(self, call: Sequence[str]) -> list[str]:
        if self.verdict is Verdict.CAPTURE_ERROR:
            caught = "(Exception, SystemExit)" if self.cause == Rule.HOST_EXCEPTION else "Exception"
            says = [*capture_error(self.cause, self.message, self.label), *self._leave("1")]
            return ["try:", *indented(call), f"except {caught} as error:", *indented(says)]
        if self.verdict is Verdict.REPLAY_ERROR:
            return self._guarded(call, "replay_error", "(Exception, SystemExit)")
        return self._guarded(call, "dangling_buffer", "RuntimeError") if self.verdict is Verdict.DANGLING_BUFFER else [*call]

    def _compared(self) -> list[str]:
        where = ", inputs {step}" if self._several else ""
        beside = self.drive.schedule.second != "none"
        others = ["beside = other()", *self._seed("0"), "shown = runner(**beside)"] if beside else []
        if self._holds:
            says = self._says(", held over the next call", "before", "after")
            look = [f"after = {self._look('held', 'given')}", says, "differs |= after != before"]
            hold = f"held, before = output, {self._look('output', 'given')}"
            return ["if held is not None:", *indented(look), hold, *others, *(look if beside else [])]
        if self._sees_others:
            says = self._says(", other inputs in between", "expected", "replay", "eager", "runner")
            return [*others, f"replay = {self._look('shown', 'beside')}", says, "differs |= replay != expected"]
        eager = "eager[number]" if self._state else "eager[step]" if self._several else "eager"
        says = self._says(where, eager, "replay", "eager", "runner")
        return [f"replay = {self._look('output', 'given')}", says, f"differs |= replay != {eager}", *others]
