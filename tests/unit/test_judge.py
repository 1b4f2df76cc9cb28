"""`judge`: the verdict of one case, with its line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from capfuzz.devices.sim.device import SimDevice
from capfuzz.differential import Verdict
from capfuzz.findings.finding import signature
from capfuzz.targets import Case, Subject
from capfuzz.targets.fold_indptr import TARGET
from capfuzz.targets.judge import judge

CASE = Case({"fold_factor": 1, "dtype": "int32", "layout": "contiguous"}, [{"start": 0, "lengths": [2]}])


def raises(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    raise ValueError("no")


class LostDevice(SimDevice):
    """It is lost with its first error; `was_exact` says whether it was told to wait after each op."""

    was_exact = False

    def is_healthy(self) -> bool:
        return False

    @contextmanager
    def exact(self) -> Iterator[None]:
        self.was_exact = True
        yield


@pytest.fixture
def device() -> Iterator[LostDevice]:
    with LostDevice() as opened:
        yield opened


def test_the_line_of_an_error_that_cost_the_device_is_not_believed(device: LostDevice) -> None:
    outcome = judge(device, Subject(TARGET, "user:x:raises", raises), CASE)
    assert outcome.verdict is Verdict.EAGER_ERROR
    assert outcome.blame.location is None
    assert not device.was_exact


def test_it_is_found_by_waiting_after_each_op(device: LostDevice) -> None:
    outcome = judge(device, Subject(TARGET, "user:x:raises", raises), CASE, "eager_error:ValueError")
    assert device.was_exact
    assert outcome.blame.location is not None
    assert outcome.blame.location.function == "raises"


class LooselyWatched(SimDevice):
    """It knows which op failed only while it waits after each one, as a GPU does."""

    waits = False

    @contextmanager
    def exact(self) -> Iterator[None]:
        self.waits = True
        yield
        self.waits = False

    def failed_op(self, error: BaseException) -> str | None:
        return super().failed_op(error) if self.waits else None


def ill_shaped(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    return indptr + indptr[:-1].repeat(7)


def test_a_fault_has_one_name_however_it_is_asked_for() -> None:
    subject = Subject(TARGET, "user:x:ill_shaped", ill_shaped)
    with LooselyWatched() as device:
        first = judge(device, subject, CASE)
        again = judge(device, subject, CASE, first.label)
    assert first.label == "eager_error:RuntimeError"
    assert first.blame.op == "add.Tensor"
    assert signature("fold_indptr", first) == signature("fold_indptr", again)
