"""Do two devices give the same verdicts? The same cases on both, and every one where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.differential import Outcome
from capfuzz.targets import Case, Subject, Target, shipped, variant
from capfuzz.workers import Judge


@dataclass(frozen=True)
class Compared:
    """One case of one implementation on both devices."""

    subject: Subject
    case: Case
    left: Outcome
    right: Outcome

    @property
    def agree(self) -> bool:
        return self.left.label == self.right.label


def subjects_of(target: Target) -> list[Subject]:
    """The shipped implementation and every variant."""
    return [shipped(target), *(variant(target, name) for name in target.variants)]


def compare(subject: Subject, cases: Iterable[Case], left: Judge, right: Judge) -> Iterator[Compared]:
    for case in cases:
        yield Compared(subject, case, left.judge(case), right.judge(case))


def compare_target(
    target: Target, cases: int, seed: int, judges: Callable[[Subject], tuple[Judge, Judge]]
) -> Iterator[Compared]:
    """`cases` drawn cases, the same for each implementation of the target."""
    chosen = drawn(target.strategy(), cases, seed)
    for subject in subjects_of(target):
        yield from compare(subject, chosen, *judges(subject))
