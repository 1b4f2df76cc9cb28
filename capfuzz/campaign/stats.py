"""How often each value of each axis was drawn, and each pair of values: what a run can have seen, and what it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from capfuzz.targets import Case, Target
from capfuzz.targets.axes import StepIntAxis

Value = int | str
BATCH, CHANGES = "batch", "changed inputs"


class Drawn:
    """Counts of one run."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.cases = 0
        self.values: dict[str, Counter[Value]] = {}
        self._pairs: Counter[tuple[str, Value, str, Value]] = Counter()

    def add(self, case: Case) -> None:
        self.cases += 1
        values = self._values_of(case)
        for name, value in values.items():
            self.values.setdefault(name, Counter())[value] += 1
        for axis in self._target.stepped:
            if isinstance(axis, StepIntAxis):
                self.values.setdefault(axis.name, Counter()).update(_integers(case, axis.name))
        for (a, x), (b, y) in combinations(values.items(), 2):
            self._pairs[a, x, b, y] += 1

    def _values_of(self, case: Case) -> dict[str, Value]:
        values: dict[str, Value] = {BATCH: self._target.batch(case)}
        return {**values, **case.values, CHANGES: len(case.steps) - 1}

    def claimed(self) -> dict[str, tuple[Value, ...]]:
        """The values that the target says it draws, for each fixed axis."""
        return {axis.name: tuple(axis.common) for axis in self._target.fixed}

    def missing_values(self) -> Iterator[tuple[str, Value]]:
        of_steps = {
            axis.name: (axis.least, *axis.common)
            for axis in self._target.stepped
            if isinstance(axis, StepIntAxis) and not axis.up_to_batch
        }
        for name, claimed in {**self.claimed(), **of_steps}.items():
            for value in claimed:
                if not self.values.get(name, Counter())[value]:
                    yield name, value

    def missing_pairs(self) -> Iterator[tuple[str, Value, str, Value]]:
        """Pairs of claimed values that never came together."""
        for (a, left), (b, right) in combinations(self.claimed().items(), 2):
            for x in left:
                for y in right:
                    if not self._pairs[a, x, b, y]:
                        yield a, x, b, y

    def pairs(self) -> dict[tuple[str, str], list[tuple[Value, Value, int]]]:
        """For each two axes, how often each two of their claimed values came together."""
        counted: dict[tuple[str, str], list[tuple[Value, Value, int]]] = {}
        for (a, left), (b, right) in combinations(self.claimed().items(), 2):
            counted[a, b] = [(x, y, self._pairs[a, x, b, y]) for x in left for y in right]
        return counted


def _integers(case: Case, name: str) -> Iterator[int]:
    for step in case.steps:
        value = step[name]
        assert isinstance(value, int)
        yield value


def stats_lines(drawn: Drawn) -> list[str]:
    """The counts for a person: each axis with its values, then the pairs that were rare or never met."""
    lines = [f"drawn: {drawn.cases} cases"]
    for name, counts in drawn.values.items():
        shown = ", ".join(f"{value}: {count}" for value, count in sorted(counts.items(), key=lambda item: _order(item[0])))
        lines.append(f"  {name:<16}{shown}")
    missing = [f"{name}={value}" for name, value in drawn.missing_values()]
    lines.append(f"  never drawn     {', '.join(missing) or 'no value that the target claims'}")
    pairs = [f"{a}={x} with {b}={y}" for a, x, b, y in drawn.missing_pairs()]
    lines.append(f"  never together  {', '.join(pairs) or 'no pair of values that the target claims'}")
    for (a, b), counted in drawn.pairs().items():
        lines.append(f"  {a} with {b}: {', '.join(f'{x} {y}: {count}' for x, y, count in counted)}")
    return lines


def _order(value: Value) -> tuple[bool, Value]:
    return (isinstance(value, str), value)
