"""The edit that mends a wrong answer: which one is found, that none is where there is none, and that no edit can do harm."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import pytest
import torch

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import Device
from capfuzz.targets import Case, Subject, Target, get_target, variant
from capfuzz.targets import mending as mending_module
from capfuzz.targets.edits import edits
from capfuzz.targets.mending import Mended, mend
from capfuzz.workers import InProcess, JudgeFailed, WorkerPool

TARGET: Target = get_target("fold_indptr")
SHIPPED: Any = TARGET.implementation


def too_much(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    out = SHIPPED(indptr, fold_factor)
    out += 1
    return out


def counts_up_to(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    count = 0
    while count < 3:
        count += 1
    return SHIPPED(indptr, fold_factor) + count


def quite_wrong(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    return torch.zeros(3, dtype=indptr.dtype, device=indptr.device)


def mended(function: Any, cases: list[Case] | None = None) -> Mended | None:
    return mend(Subject(TARGET, "user:tests:function", function), cases or CASES, 30)


CASES = drawn(TARGET.strategy(), 20, 5)


def test_a_statement_too_many_is_left_out() -> None:
    code = too_much.__code__
    found = mended(too_much)
    assert found is not None
    assert (found.location.text, found.before, found.after, found.cases) == ("out += 1", "out += 1", "", len(CASES))
    assert too_much.__code__ is code  # the implementation is as it was


def test_an_edit_that_never_ends_costs_its_seconds_and_not_the_search() -> None:
    begun = time.monotonic()
    found = mended(counts_up_to)  # without `count += 1` it does not end
    assert found is not None
    assert found.after == "return SHIPPED(indptr, fold_factor)"
    assert time.monotonic() - begun < 20


def test_what_one_edit_cannot_mend_is_not_mended() -> None:
    assert mended(quite_wrong) is None


def test_what_is_right_is_not_mended() -> None:
    assert mended(SHIPPED) is None


def test_a_time_limit_ends_the_search() -> None:
    assert mend(Subject(TARGET, "user:tests:function", too_much), CASES, 0) is None


def test_edits_leave_the_rest_of_the_function_alone() -> None:
    found = list(edits([too_much]))
    assert len({(edit.location.line, edit.after) for edit in found}) >= 4
    assert {edit.code.co_firstlineno for edit in found} == {too_much.__code__.co_firstlineno}
    assert not any(edit.before == edit.after for edit in found)


def test_a_function_without_source_has_no_edits() -> None:
    made: dict[str, Any] = {}
    exec("def made(indptr, fold_factor):\n    x = 1\n    return indptr", made)
    assert list(edits([made["made"]])) == []


def test_the_search_in_a_worker_costs_the_worker_alone() -> None:
    target = get_target("lens_to_indptr")
    subject = variant(target, "counts_padding")
    cases = drawn(target.strategy(), 60, 3)
    with WorkerPool(subject, "sim") as pool:
        failing = [case for case in cases if pool.judge(case).is_fault]
        assert failing
        found = pool.mend([failing[0], *cases], 20)
        assert found is not None
        assert found.after == "return lens_to_indptr(buf, lens, live, tail)"
        assert pool.judge(failing[0]).is_fault  # what judges next is not edited


def test_a_defect_in_the_search_is_said(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("planted defect")

    monkeypatch.setattr(mending_module, "edits", fail)
    subject = variant(get_target("lens_to_indptr"), "counts_padding")
    here = InProcess(device, subject)
    failing = next(case for case in drawn(subject.target.strategy(), 60, 3) if here.judge(case).is_fault)
    with WorkerPool(subject, "sim") as pool:
        for judge in (here, pool, pool):
            with pytest.raises(JudgeFailed, match="RuntimeError: planted defect"):
                judge.mend([failing], 20)
            assert judge.judge(failing).label == "reference_mismatch"  # another worker's answer: this one has ended
