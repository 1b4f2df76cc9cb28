"""Schedules: each sees what the plain order does not, is named in words, drawn, and left out where it is not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import Device, open_device
from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Drive, Mode, Outcome, Runner, Schedule, TwoPart, check
from capfuzz.findings.minimise import minimise
from capfuzz.targets import Case, InvalidCaseError, get_target


@pytest.fixture(params=["sim", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Both devices, where there are both."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU that this torch can use")
    with open_device(request.param) as opened:
        yield opened


LAYOUT = LAYOUTS["offset"]
FEEDS = [{"x": Argument(np.array(values, np.int64), LAYOUT)} for values in ([1, 2, 3], [4, 5, 6])]
LARGER = {"x": Argument(np.arange(9, dtype=np.int64), LAYOUT)}


def judged(device: Device, implementation: Any, schedule: Schedule, **others: Any) -> Outcome:
    return check(device, implementation, FEEDS, drive=Drive(schedule, **others))


def lazily() -> Callable[..., Any]:
    tables: dict[int, torch.Tensor] = {}

    def op(x: torch.Tensor) -> torch.Tensor:
        if x.numel() not in tables:
            tables[x.numel()] = torch.tensor([7] * x.numel()).to(x.device)
        return x + tables[x.numel()]

    return op


def in_place() -> Callable[..., Any]:
    def op(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    return op


def one_workspace() -> Any:
    """Each capture's preparation puts its own workspace where every replay finds it."""
    workspaces: list[torch.Tensor] = []

    def prepare(mode: Mode, x: torch.Tensor) -> torch.Tensor:
        if mode is not Mode.REPLAY:
            workspaces.append(torch.empty_like(x))
        workspaces[-1].copy_(x)
        return workspaces[-1]

    def body(prepared: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return prepared + 1

    return TwoPart(prepare, body)


def shared_scratch() -> Callable[..., Any]:
    """A workspace that is made in the first capture, and that every later graph writes too."""
    made: list[torch.Tensor] = []

    def op(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            return x + 1
        if not made:
            made.append(torch.empty_like(x))
        return torch.add(x, 1, out=made[0])

    return op


def growing() -> Callable[..., Any]:
    """The workspace of the largest batch so far; a larger one replaces it."""
    kept: list[torch.Tensor] = []

    def op(x: torch.Tensor) -> torch.Tensor:
        if not kept or kept[0].numel() < x.numel():
            kept[:] = [torch.zeros_like(x)]
        return x + kept[0][: x.numel()].fill_(1)

    return op


def blind() -> Callable[..., Any]:
    return lambda x: torch.as_strided(x, x.shape, (1,), 0) + 0


def skips_staging() -> Any:
    """Stages nothing for inputs that it has staged last, though an eager call has used the buffer since."""
    shared: dict[int, torch.Tensor] = {}
    staged: list[list[int]] = []

    def prepare(mode: Mode, x: torch.Tensor) -> torch.Tensor:
        buffer = shared.setdefault(x.numel(), torch.empty_like(x))
        if mode is not Mode.REPLAY or staged != [x.tolist()]:
            buffer.copy_(x)
        if mode is not Mode.EAGER:
            staged[:] = [x.tolist()]
        return buffer

    def body(prepared: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return prepared + 1

    return TwoPart(prepare, body)


FAULTS: list[tuple[Callable[[], Any], Schedule, str]] = [
    (lazily, Schedule(warm_ups=0), "capture_error:host_copy"),
    (in_place, Schedule(warm_ups=2), "divergence:not_idempotent"),
    (one_workspace, Schedule(second="twin"), "divergence:stale_host_value"),
    (shared_scratch, Schedule(second="twin"), "divergence:aliased_output"),
    (growing, Schedule(between="larger"), "dangling_buffer"),
    (skips_staging, Schedule(eager_between=True), "divergence:not_idempotent"),
    (blind, Schedule(eager_layout="contiguous"), "divergence:values"),
]


@pytest.mark.parametrize(("make", "schedule", "label"), FAULTS, ids=[make.__name__ for make, _, _ in FAULTS])
def test_each_schedule_shows_what_the_plain_order_does_not(
    device: Device, make: Callable[[], Any], schedule: Schedule, label: str
) -> None:
    assert judged(device, make(), Schedule()).label == "equivalent"
    assert judged(device, make(), schedule, larger=LARGER).label == label


@pytest.mark.parametrize("schedule", [schedule for _, schedule, _ in FAULTS], ids=str)
def test_a_right_op_is_equivalent_under_each_schedule(device: Device, schedule: Schedule) -> None:
    assert judged(device, lambda x: torch.cumsum(x, 0), schedule, second=LARGER, larger=LARGER).label == "equivalent"


def test_what_raises_in_eager_too_is_no_fault_of_a_cold_capture(device: Device) -> None:
    def op(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("never")

    assert judged(device, op, Schedule(warm_ups=0)).label == "eager_error:ValueError"


def test_a_second_graph_that_is_gone_takes_its_buffers_with_it(device: Device) -> None:
    """The workspace belongs to the graph that was captured first, which is destroyed before the other one is replayed."""
    workspaces: list[torch.Tensor] = []

    def op(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            workspaces.clear()
            return x + 1
        if not workspaces:
            workspaces.append(x)
        return workspaces[0] + 1

    outcome = judged(device, op, Schedule(second="twin", second_dies=True))
    assert outcome.is_fault


class Held:
    """Answers from one static buffer."""

    def __init__(self) -> None:
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.graph is None:
            self.x, self.graph = x.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = self.x + 1
        self.x.copy_(x)
        self.graph.replay()
        return self.out


def test_a_runner_whose_answers_are_its_static_buffers(device: Device) -> None:
    def eager(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert judged(device, Runner(eager, Held), Schedule()).label == "divergence:aliased_output"
    assert judged(device, Runner(eager, Held, may_hold=False), Schedule()).label == "equivalent"


def test_a_runner_that_finds_its_graph_by_too_little(device: Device) -> None:
    class ByNothing(Held):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x[:3]).clone()

    def eager(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert judged(device, Runner(eager, ByNothing), Schedule()).label == "equivalent"
    assert judged(device, Runner(eager, ByNothing), Schedule(second="bucket"), second=LARGER).label == "divergence:shape"


# -- cases -------------------------------------------------------------------------------------------------------------


def test_every_kind_of_schedule_is_drawn_in_the_default_budget_and_most_are_the_simplest() -> None:
    target = get_target("fold_indptr")
    cases = drawn(target.strategy(), 2000, 1)
    counts = Counter(tuple(case.schedule.needs()) for case in cases)
    assert counts[()] > 1500
    for name, values in {
        "warm_ups": {0, 1, 2, 3},
        "second": {"none", "twin", "bucket", "value"},
        "axis": {None, "fold_factor", "dtype", "layout"},
        "second_dies": {False, True},
        "between": {"nothing", "churn", "larger", "both"},
        "eager_between": {False, True},
        "eager_layout": {"same", "contiguous"},
    }.items():
        assert {getattr(case.schedule, name) for case in cases} == values


def test_a_schedule_must_name_an_axis_of_the_target() -> None:
    target = get_target("fold_indptr")
    case = drawn(target.strategy(), 1, 1)[0].with_schedule(Schedule(second="value", axis="nothing"))
    with pytest.raises(InvalidCaseError, match=r"case\.schedule\.axis: must be one of fold_factor"):
        target.feeds(case)


def test_the_other_graph_has_twice_as_many_rows_or_another_value() -> None:
    target = get_target("fold_indptr")
    case = Case({"fold_factor": 2, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [3, 4], "start": 0}])
    bucket = target.drive(case.with_schedule(Schedule(second="bucket", between="larger")))
    assert bucket.second is not None and bucket.larger is not None
    assert isinstance(bucket.second["indptr"], Argument)
    assert bucket.second["indptr"].array.tolist() == [0, 3, 7, 10, 14]
    other = target.drive(case.with_schedule(Schedule(second="value", axis="fold_factor"))).second
    assert other is not None and other["fold_factor"] == 3


@pytest.mark.parametrize(
    "needed",
    [
        Schedule(warm_ups=0),
        Schedule(warm_ups=2),
        Schedule(second="twin"),
        Schedule(second="bucket"),
        Schedule(second="twin", second_dies=True),
        Schedule(between="churn"),
        Schedule(between="larger"),
        Schedule(eager_between=True),
        Schedule(eager_layout="contiguous"),
    ],
    ids=str,
)
def test_a_schedule_is_minimised_to_what_the_fault_needs(needed: Schedule) -> None:
    target = get_target("fold_indptr")
    full = Schedule(3, "bucket", None, True, "both", True, "contiguous")
    if needed.is_cold:
        full = Schedule(0, "bucket", None, False, "both", True, "contiguous")
    case = Case({"fold_factor": 1, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [], "start": 0}], full)

    def still_fails(candidate: Case) -> bool:
        has = candidate.schedule
        second = needed.second == "none" or (has.second != "none" and (needed.second == "twin" or has.second == "bucket"))
        return (
            (has.is_cold if needed.is_cold else has.warm_ups >= needed.warm_ups)
            and second
            and (has.second_dies or not needed.second_dies)
            and (has.churns or not needed.churns)
            and (has.grows or not needed.grows)
            and (has.eager_between or not needed.eager_between)
            and (has.eager_layout == needed.eager_layout or needed.eager_layout == "same")
        )

    assert minimise(target, case, still_fails).case.schedule == needed
    assert needed.needs()
