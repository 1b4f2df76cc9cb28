"""Can this target fail at all? Every registered fault must be found, with its verdict, in a small budget, from several seeds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from capfuzz.campaign.hypothesis_engine import nothing_written, property_of
from capfuzz.targets import Case, Subject, Target, Variant, variant
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


def search(target: Target, label: str, judge: Judge, seed: int, most: int) -> Search:
    """Draws cases until one is judged as `label`."""
    begun = time.monotonic()
    cases = 0
    instead: str | None = None

    def body(case: Case) -> None:
        nonlocal cases, instead
        cases += 1
        outcome = judge.judge(case, only="")  # the line is not asked for
        if outcome.label == label:
            raise _Found
        if outcome.is_fault and instead is None:
            instead = outcome.label

    try:
        with nothing_written():
            property_of(target.strategy(), body, most, seed)()
    except _Found:
        return Search(seed, cases, time.monotonic() - begun, instead)
    return Search(seed, None, time.monotonic() - begun, instead)
