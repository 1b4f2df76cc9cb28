"""The op trace that a worker takes: whatever the implementation does, the parent has a trace or the reason why not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capfuzz.campaign import Budget, Campaign, CampaignOver
from capfuzz.campaign.campaign import Extras
from capfuzz.campaign.events import Event, Found
from capfuzz.cli.trace import simple_case
from capfuzz.devices import Device
from capfuzz.differential import Runner, TwoPart, Verdict
from capfuzz.targets import Subject, get_target, shipped, targets, variant
from capfuzz.targets.op_trace import trace_case
from capfuzz.targets.subjects import user
from capfuzz.workers import InProcess, JudgeFailed, WorkerPool
from capfuzz.workers import worker as worker_module

TARGET = get_target("fold_indptr")
CASE = simple_case(TARGET)

MINE = """\
import os
import time

import torch

from capfuzz.targets.fold_indptr import fold_indptr


def dies(indptr, fold_factor):
    if torch.cuda.is_current_stream_capturing():
        os._exit(3)
    return fold_indptr(indptr, fold_factor)


def hangs(indptr, fold_factor):
    while True:
        pass


def ends(indptr, fold_factor):
    raise SystemExit(1)
"""
Open = Callable[[Subject], WorkerPool]


@pytest.fixture
def opened() -> Iterator[Open]:
    pools: list[WorkerPool] = []

    def one(subject: Subject) -> WorkerPool:
        pools.append(WorkerPool(subject, "sim").__enter__())
        return pools[-1]

    yield one
    for pool in pools:
        pool.__exit__()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Subject]]:
    (tmp_path / "traced_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: user(TARGET, f"traced_mine:{name}")
    sys.modules.pop("traced_mine", None)


def test_a_worker_traces_as_this_process_does(opened: Open, device: Device) -> None:
    for subject in (shipped(TARGET), variant(TARGET, "scalar_store")):
        theirs, ours = opened(subject).trace(CASE), trace_case(device, subject, CASE)
        assert [(r.op, r.fate, r.read, r.written) for r in theirs.records] == [
            (r.op, r.fate, r.read, r.written) for r in ours.records
        ]
        lines = [(record.location.file, record.location.line) for record in theirs.records if record.location]
        assert lines == [(record.location.file, record.location.line) for record in ours.records if record.location]
        assert (theirs.error is None) == (ours.error is None) == (subject.label == "shipped")
    assert theirs.error is not None
    assert theirs.error.label == "capture_error:host_copy"


def test_a_trace_comes_between_cases(opened: Open) -> None:
    pool = opened(shipped(TARGET))
    judged = []
    for _ in range(5):
        judged += list(pool.feed(CASE))
        assert pool.trace(CASE).records
        assert not pool.judge(CASE).is_fault
    judged += list(pool.drain())
    assert len(judged) == 5


def test_an_implementation_that_ends_its_process_ends_its_trace(opened: Open, mine: Callable[[str], Subject]) -> None:
    pool = opened(mine("dies"))
    for _ in range(2):
        trace = pool.trace(CASE)
        assert trace.records == []
        assert trace.error is not None
        assert (trace.error.verdict, trace.error.message) == (Verdict.CRASH, "the process ended: exit status 3")


def test_a_trace_has_its_time(opened: Open, mine: Callable[[str], Subject]) -> None:
    begun = time.monotonic()
    trace = opened(mine("hangs")).trace(CASE, 0.5)
    assert time.monotonic() - begun < 8.0, "less than what a case is given"
    assert trace.error is not None
    assert (trace.error.verdict, trace.error.message) == (Verdict.HANG, "no end after 0.5 s")


def test_what_the_implementation_raises_is_told(opened: Open, mine: Callable[[str], Subject]) -> None:
    trace = opened(mine("ends")).trace(CASE)
    assert trace.warm_up
    assert trace.error is not None
    assert trace.error.label == "eager_error:SystemExit"


def test_a_defect_is_a_defect(opened: Open, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted defect")

    monkeypatch.setattr(worker_module, "trace_case", fail)
    pool = opened(shipped(TARGET))
    with pytest.raises(JudgeFailed, match="RuntimeError: planted defect"):
        pool.trace(CASE)
    assert not pool.judge(CASE).is_fault, "the worker goes on"
    monkeypatch.setattr("capfuzz.workers.judges.trace_case", fail)
    with pytest.raises(JudgeFailed, match="RuntimeError: planted defect"):
        InProcess(device, shipped(TARGET)).trace(CASE)


TWO_PART = [
    Subject(target, f"variant:{name}", each.function)
    for target in targets().values()
    for name, each in target.variants.items()
    if isinstance(each.function, TwoPart)
]


@pytest.mark.parametrize("subject", TWO_PART, ids=lambda subject: f"{subject.target.name}-{subject.label}")
def test_an_implementation_in_two_parts_is_traced(device: Device, subject: Subject) -> None:
    trace = trace_case(device, subject, simple_case(subject.target))
    assert trace.records or trace.error is not None


def test_a_host_part_that_raises_is_not_a_defect(device: Device) -> None:
    def prepare(*_: object, **__: object) -> None:
        raise ValueError("no such mode")

    trace = trace_case(device, Subject(TARGET, "shipped", TwoPart(prepare, lambda prepared, **inputs: None)), CASE)
    assert trace.warm_up
    assert trace.error is not None
    assert (trace.error.label, trace.error.message) == ("eager_error:ValueError", "no such mode")


def test_what_captures_by_itself_has_no_trace(device: Device) -> None:
    def fails(**inputs: object) -> None:
        raise ValueError("always")

    told: list[Event] = []
    subject = Subject(TARGET, "shipped", Runner(fails, lambda: fails))
    budget = Budget(max_findings=1)
    extras = Extras(trace=True)
    judge = InProcess(device, subject)
    campaign = Campaign(subject, judge, told.append, engine="none", seed=None, budget=budget, corpus=None, extras=extras)
    with pytest.raises(CampaignOver):
        campaign.try_case(CASE)
    (found,) = (event for event in told if isinstance(event, Found))
    assert found.trace == "the implementation makes its graphs itself, out of sight"
