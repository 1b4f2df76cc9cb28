"""Can this target fail at all? Every registered fault must be found, with its verdict, soon, from several seeds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from capfuzz.campaign.hypothesis_engine import nothing_written, property_of
from capfuzz.differential import Schedule
from capfuzz.targets import Case, Subject, Target, Variant, variant
from capfuzz.targets.mutants import Mutant, mutants
from capfuzz.workers import Judge


@dataclass(frozen=True)
class Search:
    """One search for one fault from one seed: how many cases it took, or None where it was not found."""

    seed: int
    cases: int | None
    seconds: float
    instead: str | None = None
    """A fault with another verdict that was met before."""


@dataclass
class Audited:
    """One registered fault, searched for from every seed."""

    target: Target
    variant: Variant
    searches: list[Search] = field(default_factory=list)

    @property
    def missed(self) -> list[Search]:
        return [search for search in self.searches if search.cases is None or search.instead is not None]

    @property
    def median_cases(self) -> float:
        return statistics.median(search.cases or 0 for search in self.searches)

    @property
    def median_seconds(self) -> float:
        return statistics.median(search.seconds for search in self.searches)


@dataclass(frozen=True)
class MutantsAudited:
    """The mechanical mutants of one target: how many there are, and which no case told from the shipped implementation."""

    target: Target
    count: int
    survivors: list[Mutant]

    @property
    def unexplained(self) -> list[Mutant]:
        return [mutant for mutant in self.survivors if mutant.name not in self.target.equivalent_mutants]

    @property
    def share(self) -> float:
        """Of those that are not known to be equivalent, how many were found."""
        real = self.count - len(self.survivors) + len(self.unexplained)
        return 1.0 if real == 0 else 1 - len(self.unexplained) / real


def audit_mutants(target: Target, seed: int, most: int, judge_of: Callable[[Subject], Judge]) -> MutantsAudited:
    """Searches for any fault of each mechanical mutant."""
    found = list(mutants(target))
    survivors = []
    for mutant in found:
        judge = judge_of(Subject(target, f"mutant:{mutant.name}", mutant.function))
        if search(target, None, judge, seed, most).cases is None:
            survivors.append(mutant)
    return MutantsAudited(target, len(found), survivors)


class _Found(BaseException):
    """Ends the drawing of cases. Not an `Exception`: Hypothesis would draw the case again."""


def audit(target: Target, seeds: int, most: int, judge_of: Callable[[Subject], Judge]) -> Iterator[Audited]:
    """Every variant of a target, `seeds` searches of at most `most` cases each."""
    for name, registered in target.variants.items():
        judge = judge_of(variant(target, name))
        audited = Audited(target, registered)
        for seed in range(seeds):
            audited.searches.append(search(target, registered.label, judge, seed, most))
        yield audited


def search(
    target: Target,
    label: str | None,
    judge: Judge,
    seed: int,
    most: int,
    schedules: Callable[[Schedule], Schedule] | None = None,
) -> Search:
    """Draws cases until one is judged as `label`, or any fault where that is None; `schedules` changes how each is driven."""
    begun = time.monotonic()
    cases = 0
    instead: str | None = None

    def body(case: Case) -> None:
        nonlocal cases, instead
        cases += 1
        case = case if schedules is None else case.with_schedule(schedules(case.schedule))
        outcome = judge.judge(case, only="")  # the line is not asked for
        if outcome.label == label or (label is None and outcome.is_fault):
            raise _Found
        if outcome.is_fault and instead is None:
            instead = outcome.label

    try:
        with nothing_written():
            property_of(target.strategy(), body, most, seed)()
    except _Found:
        return Search(seed, cases, time.monotonic() - begun, instead)
    return Search(seed, None, time.monotonic() - begun, instead)
