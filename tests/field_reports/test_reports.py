"""The recall suite: each report's fault gets its verdict, its mended form none; and what finds it is shown to be needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from capfuzz.campaign.audit import search
from capfuzz.campaign.field_reports import FAULTY, Report, reports_in
from capfuzz.devices import Device
from capfuzz.targets import Subject, shipped, variant
from capfuzz.workers import InProcess, Judge, WorkerPool

REPORTS = {report.name: report for report in reports_in(Path("tests/field_reports"))}
COLD = frozenset(["pytorch_185074", "triton_10596"])  # found by a worker that has run nothing


@pytest.fixture
def judge_of(device: Device) -> Iterator[object]:
    opened: list[WorkerPool] = []

    def judge(report: Report, subject: Subject) -> Judge:
        if report.name not in COLD:
            return InProcess(device, subject)
        opened.append(WorkerPool(subject, "sim").__enter__())
        return opened[-1]

    yield judge
    for pool in opened:
        pool.__exit__()


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_fault_is_found_with_its_verdict_and_the_mended_form_has_none(report: Report, judge_of) -> None:  # type: ignore[no-untyped-def]
    target = report.target
    label = target.variants[FAULTY].label
    found = search(target, label, judge_of(report, variant(target, FAULTY)), 7, 2000)
    if report.cannot_show is None:
        assert found.cases is not None and found.instead is None
    mended = search(target, None, judge_of(report, shipped(target)), 7, 40)
    assert mended.cases is None


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_names_its_address(report: Report) -> None:
    assert report.target.variants[FAULTY].source.startswith("https://github.com/")
    assert report.fault_class in ("H1", "H2", "H3", "F", "B", "S", "P", "M", "L", "E", "Y", "R", "O", "X")
    assert set(report.target.variants) == {FAULTY}


def test_there_are_53_of_which_at_least_51_show() -> None:
    assert len(REPORTS) == 53
    assert sum(report.cannot_show is None for report in REPORTS.values()) >= 51
