"""`judge`: the verdict of one case, with its line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from capfuzz.devices.base import Body, Graph
from capfuzz.devices.errors import CudaError
from capfuzz.devices.sim.device import SimDevice
from capfuzz.devices.tracer import Tracer
from capfuzz.differential import Blame, Schedule, Verdict
from capfuzz.findings.finding import signature
from capfuzz.targets import Case, Subject
from capfuzz.targets.fold_indptr import TARGET, fold_indptr
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


def asserts(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Right in eager code; what is captured for another fold factor than one asserts, in the graph's middle."""
    wrong = torch.zeros(1, device="cuda")
    if fold_factor > 1 and torch.cuda.is_current_stream_capturing():
        torch._assert_async(wrong)
    return fold_indptr(indptr, fold_factor)


_ASSERTING = "replay_error:AcceleratorError"


@pytest.mark.parametrize("kind", [SimDevice, LostDevice])
@pytest.mark.parametrize("only", [None, _ASSERTING])
@pytest.mark.parametrize(
    "case",
    [CASE.with_value("fold_factor", 2), CASE.with_schedule(Schedule(second="value", axis="fold_factor"))],
    ids=["the graph", "the other graph"],
)
def test_a_replay_that_ends_early_is_blamed_on_its_last_node(kind: type[SimDevice], only: str | None, case: Case) -> None:
    """A lost device does not tell which it was: the simulated one does, and the fault has one name on both."""
    with kind() as device:
        outcome = judge(device, Subject(TARGET, "user:x:asserts", asserts), case, only)
    assert outcome.label == _ASSERTING
    assert outcome.blame.op == "_assert_async"
    assert outcome.blame.location is not None
    assert outcome.blame.location.text == "torch._assert_async(wrong)"


def test_a_line_that_the_simulated_device_does_not_know_is_not_made_up() -> None:
    class AssertsAlone(LostDevice):
        def capture(self, body: Body, seed: int, tracer: Tracer | None = None) -> Graph:
            graph = super().capture(body, seed, tracer)

            def replay(seed: int, tracer: Tracer | None = None) -> None:
                raise CudaError("cudaErrorAssert")

            graph.replay = replay  # type: ignore[method-assign]
            return graph

    with AssertsAlone() as device:
        outcome = judge(device, Subject(TARGET, "builtin", fold_indptr), CASE)
    assert outcome.label == _ASSERTING
    assert outcome.blame == Blame(None, None)


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
