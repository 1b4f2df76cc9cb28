"""Recall on public bug reports: modules that each hold one report's faulty and mended implementation as a target."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from capfuzz.campaign.audit import Search, search
from capfuzz.targets import Subject, Target, get_target, shipped, variant
from capfuzz.workers import Judge

FAULTY = "faulty"
MENDED_CASES = 200  # from each seed


@dataclass(frozen=True)
class Report:
    """One report: its target, its fault class (a letter that docs/field_reports.md explains), and why it cannot show, if so."""

    name: str
    target: Target
    fault_class: str
    cannot_show: str | None

    @property
    def address(self) -> str:
        """Where the report is read."""
        return self.target.variants[FAULTY].source


@dataclass(frozen=True)
class Recalled:
    """What `searches` for the faulty implementation found, and which verdicts the mended one got that it must not get."""

    report: Report
    searches: list[Search]
    mended_faults: list[str]

    @property
    def expected(self) -> str:
        return self.report.target.variants[FAULTY].label

    @property
    def given(self) -> str:
        """The verdict that came first, from each seed."""
        labels = {found.instead or (self.expected if found.cases is not None else "nothing") for found in self.searches}
        return ", ".join(sorted(labels))

    @property
    def is_found(self) -> bool:
        return self.given == self.expected


def reports_in(directory: Path) -> Iterator[Report]:
    """Every report of a package of them. Raises `UnknownNameError` for a module that is none."""
    package = ".".join(directory.parts)
    for path in sorted(directory.glob("[!_]*.py")):
        if path.stem.startswith("test_"):
            continue
        target = get_target(f"{package}.{path.stem}")
        module = importlib.import_module(target.name)
        yield Report(path.stem, target, str(module.CLASS), getattr(module, "CANNOT_SHOW", None))


def recall(report: Report, seeds: int, most: int, judge_of: Callable[[Subject], Judge]) -> Recalled:
    """Searches for the fault from every seed within `most` cases, and for any fault of the mended implementation."""
    target = report.target
    label = target.variants[FAULTY].label
    found = [search(target, label, judge_of(variant(target, FAULTY)), seed, most) for seed in range(seeds)]
    faults: list[str] = []
    for seed in range(seeds):
        mended = search(target, None, judge_of(shipped(target)), seed, MENDED_CASES)
        faults += [f"a fault after {mended.cases} cases from seed {seed}"] if mended.cases is not None else []
    return Recalled(report, found, faults)
