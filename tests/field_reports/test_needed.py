"""What finds faults is needed: each schedule and each observable is switched off, and the fault that is then missed is named.

A row judges the same cases twice: as they are, where the fault gets its verdict, and with one thing switched off, where every
case is equivalent. The fault is one of the 53 reports wherever one of them needs the thing. Which do was tried out, each report
with each thing off. What no report needs is shown with a variant of a shipped target, which names a report beside the 53, or
with a fault planted in `tests/unit/test_schedule.py` or here.

- Of the schedules, reports need the cold start, the second warm-up and the second graph with another value. None of the 53
  needs a twin graph, another bucket, a graph that dies, a collector that runs, a larger eager run, an eager call between two
  replays or eager inputs in another layout: where a report is about those, its runner meets other sizes, evictions and slices
  in the steps themselves (xllm_932, pytorch_193402, sglang_27664). On a GPU `churn` also reuses freed memory; the simulated
  device refuses a graph that reads it, so all that is left for `churn` to do there is to collect cycles.
- Of the observables, reports need the outputs' values, changed inputs, fewer rows than the bucket, poison, dangling memory and
  the repeat of the last step. tensorrt_llm_7737 is also found where a case happens to have one step twice, so its steps are
  kept apart. pytorch_84967 needs a seed a step, on a device whose graphs are as PyTorch's were then. None of the 53 needs the
  reference, laws, host or device buffers, guard zones, dtypes, host numbers, answers held over the next call, or the return to
  the first step.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from capfuzz.campaign.field_reports import FAULTY, reports_in
from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import poison
from capfuzz.devices.base import Body
from capfuzz.devices.errors import DanglingBufferError
from capfuzz.devices.layout import LAYOUTS, Argument, HostMemory, Space
from capfuzz.devices.sim.device import SimBuffer, SimCapturedGraph, SimDevice
from capfuzz.devices.sim.graph import CUDAGraph
from capfuzz.devices.tracer import Tracer
from capfuzz.differential import Feed, Implementation, Mode, Runner, Schedule, TwoPart, observe
from capfuzz.differential.run import SEED, Run
from capfuzz.targets import Case, Subject, Target, get_target, variant
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import StepValue
from capfuzz.workers import InProcess, WorkerPool

REPORTS = {report.name: report.target for report in reports_in(Path("tests/field_reports"))}  # puts tests on the path

from tests.unit import test_schedule  # noqa: E402

CASES = 100
NUMBER = 7


# -- faults ------------------------------------------------------------------------------------------------------------


def _build(case: Case) -> Sequence[Feed]:
    return [{"x": Argument(np.array(step["x"], np.int64), LAYOUTS["offset"])} for step in case.steps]


PLANTED = Target(
    name="planted",
    summary="one more than each row",
    implementation=lambda x: x + 1,
    reference=None,
    fixed=(),
    stepped=(RowsAxis("x", most=64),),
    build=_build,
)


@dataclass(frozen=True)
class Fault:
    """A faulty implementation; `make` gives a new one for each case, for some keep state."""

    name: str
    target: Target
    make: Callable[[], Implementation]
    label: str


def report(name: str) -> Fault:
    """The fault of one of the 53."""
    found = REPORTS[name].variants[FAULTY]
    return Fault(name, REPORTS[name], lambda: found.function, found.label)


def shipped(target: str, name: str) -> Fault:
    """A registered variant of a shipped target."""
    found = get_target(target).variants[name]
    assert found.source, "it names a report"
    return Fault(f"{target}/{name}", get_target(target), lambda: found.function, found.label)


def scheduled(make: Callable[[], Implementation]) -> Fault:
    """A fault that is planted for the tests of schedules."""
    [label] = {label for other, _, label in test_schedule.FAULTS if other is make}
    return Fault(f"test_schedule.{make.__name__}", PLANTED, make, label)


def planted(make: Callable[[], Implementation], label: str) -> Fault:
    return Fault(f"planted {make.__name__}", PLANTED, make, label)


def first_size_only() -> Implementation:
    """Captures for the first size that it meets, and finds no other graph after that."""

    def make() -> Callable[..., torch.Tensor]:
        graph, static = torch.cuda.CUDAGraph(), list[torch.Tensor]()

        def call(x: torch.Tensor) -> torch.Tensor:
            if not static:
                static.append(x.clone())
                with torch.cuda.graph(graph):
                    static.append(static[0] + 1)
            rows = min(x.numel(), static[0].numel())
            static[0][:rows].copy_(x[:rows])
            graph.replay()
            return static[1][: x.numel()].clone()

        return call

    return Runner(lambda x: x + 1, make)


def cleared_with_any_graph() -> Implementation:
    """pytorch_193402 as a function: all graphs of a stream share a workspace, which is cleared when one of them dies."""
    workspace: list[torch.Tensor] = []

    def op(x: torch.Tensor) -> torch.Tensor:
        if not workspace:
            workspace.append(torch.zeros_like(x))
        if torch.cuda.is_current_stream_capturing():
            weakref.finalize(x, workspace.clear)
        return x + workspace[0].fill_(1)

    return op


def owned_by_a_cycle() -> Implementation:
    """What a graph reads belongs to an object that refers to itself, and lives until the collector runs."""

    class Owner:
        def __init__(self, table: torch.Tensor) -> None:
            self.table, self.me = table, self

    last: list[weakref.ref[Owner]] = []

    def op(x: torch.Tensor) -> torch.Tensor:
        owner = last[-1]() if last and torch.cuda.is_current_stream_capturing() else Owner(torch.ones_like(x))
        assert owner is not None
        last.append(weakref.ref(owner))
        return x + owner.table

    return op


def scribbles_in_the_graph() -> Implementation:
    """The answer is right, and the graph leaves something else in its input than eager does."""

    def op(x: torch.Tensor) -> torch.Tensor:
        out = x + 1
        if torch.cuda.is_current_stream_capturing():
            x.add_(1)
        return out

    return op


def writes_behind_the_end() -> Implementation:
    def op(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((x.numel() + 1,), (1,))[x.numel() :].fill_(7)
        return x + 1

    return op


def counts_on_the_host() -> Implementation:
    """Also answers with a number that the host knows, and that no replay can change."""

    def prepare(mode: Mode, x: torch.Tensor) -> int:
        return int(x.sum())

    def body(total: int, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + 1, total

    return TwoPart(prepare, body)


# -- what may be switched off ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How cases are driven and what is looked at. Each default changes nothing."""

    case: Callable[[Target, Case], Case] = lambda target, case: case
    target: Callable[[Target], Target] = lambda target: target
    implementation: Callable[[Implementation], Implementation] = lambda implementation: implementation
    device: Callable[[], SimDevice] = SimDevice
    patch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None


AS_IT_IS = Way()


def without(change: Callable[[Schedule], dict[str, Any]]) -> Way:
    """Schedules with some dimensions put back."""

    def normal(target: Target, case: Case) -> Case:
        return case.with_schedule(msgspec.structs.replace(case.schedule, **change(case.schedule)))

    return Way(case=normal)


def no_second(kind: str) -> Way:
    nothing = {"second": "none", "axis": None, "second_dies": False}
    return without(lambda schedule: nothing if schedule.second == kind else {})


NO_COLD_START = without(lambda schedule: {"warm_ups": max(1, schedule.warm_ups)})
ONE_WARM_UP = without(lambda schedule: {"warm_ups": min(1, schedule.warm_ups)})
NOBODY_DIES = without(lambda schedule: {"second_dies": False})
NO_CHURN = without(lambda schedule: {"between": "larger" if schedule.grows else "nothing"})
NOTHING_LARGER = without(lambda schedule: {"between": "churn" if schedule.churns else "nothing"})
NO_EAGER_BETWEEN = without(lambda schedule: {"eager_between": False})
ONE_LAYOUT = without(lambda schedule: {"eager_layout": "same"})


def no_reference(target: Target) -> Target:
    return replace(target, reference=None)


def no_laws(target: Target) -> Target:
    return replace(target, laws={})


def same_inputs(target: Target, case: Case) -> Case:
    return case.with_steps(case.steps[:1] * len(case.steps))


def full_batches(target: Target, case: Case) -> Case:
    """Every row is live in every step."""
    for axis in target.stepped:
        if isinstance(axis, StepIntAxis) and axis.up_to_batch:
            for number in range(len(case.steps)):
                case = case.with_step_value(number, axis.name, target.batch(case))
    return case


def steps_apart(target: Target, case: Case) -> Case:
    """No step has the lengths of another, and nothing else is called that could have one's lengths twice."""
    apart = [{**step, "kv_lens": [row // 2 + number for row in rows(step)]} for number, step in enumerate(case.steps)]
    return case.with_steps(apart).with_schedule(Schedule())


def rows(step: dict[str, StepValue]) -> list[int]:
    value = step["kv_lens"]
    assert isinstance(value, list)
    return value


def may_not_hold(implementation: Implementation) -> Implementation:
    assert isinstance(implementation, Runner)
    return replace(implementation, may_hold=False)


def no_repeat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "order", property(lambda run: [*range(len(run.feeds)), 0] if len(run.feeds) > 1 else [0]))


def no_return(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "order", property(lambda run: [*range(len(run.feeds)), len(run.feeds) - 1]))


def no_poison(patch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is zero, as it is in a young process."""
    patch.setattr(poison, "fill", lambda tensor, side: tensor.zero_())
    patch.setattr(poison, "CAPTURE_VALUES", dict.fromkeys(poison.CAPTURE_VALUES, 0))


def no_dangling(patch: pytest.MonkeyPatch) -> None:
    refuse = CUDAGraph._refuse_dangling

    def let_through(graph: CUDAGraph) -> None:
        try:
            refuse(graph)
        except DanglingBufferError:
            return

    patch.setattr(CUDAGraph, "_refuse_dangling", let_through)


def no_dtypes(patch: pytest.MonkeyPatch) -> None:
    leaf = observe._leaf
    patch.setattr(observe, "_leaf", lambda *given: leaf(*given)._replace(dtype="any"))


def no_host_numbers(patch: pytest.MonkeyPatch) -> None:
    leaf = observe._leaf

    def of_tensors(device: Any, value: Any, arrays: Any) -> observe.Leaf:
        return leaf(device, value if isinstance(value, torch.Tensor) else 0, arrays)

    patch.setattr(observe, "_leaf", of_tensors)


class _Hidden(SimBuffer):
    """Shows zeros where its elements are, and its guard zone untouched."""

    def __init__(self, argument: Argument, runtime: Any) -> None:
        super().__init__(argument, runtime)
        self._shown = HostMemory(replace(argument, array=np.zeros_like(argument.array))).base

    def snapshot(self) -> np.ndarray:
        return np.array(self._shown)


class _Unguarded(SimBuffer):
    """Shows its elements, and a guard zone that nobody has touched."""

    def __init__(self, argument: Argument, runtime: Any) -> None:
        super().__init__(argument, runtime)
        self._argument = argument

    def snapshot(self) -> np.ndarray:
        return HostMemory(replace(self._argument, array=self._memory.view.copy())).base


class DeviceBuffersHidden(SimDevice):
    def buffer(self, argument: Argument) -> SimBuffer:
        return (_Hidden if argument.space is Space.DEVICE else SimBuffer)(argument, self.runtime)


class HostBuffersHidden(SimDevice):
    def buffer(self, argument: Argument) -> SimBuffer:
        return (SimBuffer if argument.space is Space.DEVICE else _Hidden)(argument, self.runtime)


class GuardsHidden(SimDevice):
    def buffer(self, argument: Argument) -> SimBuffer:
        return _Unguarded(argument, self.runtime)


class OutputsHidden(SimDevice):
    def read_all(self, tensors: Sequence[torch.Tensor], buffers: Sequence[Any]) -> list[np.ndarray]:
        seen = super().read_all(tensors, buffers)
        return [*map(np.zeros_like, seen[: len(tensors)]), *seen[len(tensors) :]]


class SeedOfCapture(SimDevice):
    """Its graphs draw from the seed of their capture, as PyTorch's did when pytorch_84967 was reported."""

    def capture(self, body: Body, seed: int, tracer: Tracer | None = None) -> SimCapturedGraph:
        graph = super().capture(body, seed, tracer)
        replay = graph.replay

        def of_capture(seed_of_step: int, tracer: Tracer | None = None) -> None:
            replay(seed, tracer)

        graph.replay = of_capture  # type: ignore[assignment, method-assign]
        return graph


class OneSeed(SeedOfCapture):
    """All steps have the seed of the first."""

    def eager(self, body: Body, seed: int, tracer: Tracer | None = None) -> Any:
        return super().eager(body, SEED, tracer)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The fault is found `on`, and missed `off`. Cases are drawn, each again under `schedule` if there is one; and `found`."""

    what: str
    fault: Fault
    off: Way
    schedule: Schedule | None = None
    on: Way = AS_IT_IS
    found: Case | None = None

    def cases(self) -> list[Case]:
        plain = warm_cases(self.fault.target, CASES if self.schedule is None else CASES // 2)
        forced = [case.with_schedule(self.schedule) for case in plain] if self.schedule is not None else []
        if self.fault.target is PLANTED:  # it shows what one dimension sees, and others may see it too
            plain = [case.with_schedule(Schedule()) for case in plain]
        return ([] if self.found is None else [self.found]) + forced + plain


def warm_cases(target: Target, count: int) -> list[Case]:
    return [case for case in drawn(target.strategy(), count, NUMBER) if not case.schedule.is_cold]


GROWING = Case(
    {"dtype": "int32", "layout": "contiguous", "splits": 1, "chunk": 1},
    [{"seed": [0, 0, 0, 0], "live": live} for live in (1, 2, 4)],
)
VALUE = partial(Schedule, second="value")
ROWS = [
    # schedules
    Row("a second warm-up", report("tensorrt_llm_15913"), ONE_WARM_UP, Schedule(warm_ups=2)),
    Row("a graph for another value", report("sglang_23727"), no_second("value"), VALUE(axis="adapters")),
    Row("a graph for another value", report("tensorrt_llm_13696"), no_second("value"), VALUE(axis="resolution")),
    Row("a twin graph", scheduled(test_schedule.one_workspace), no_second("twin"), Schedule(second="twin")),
    Row("a twin graph", scheduled(test_schedule.shared_scratch), no_second("twin"), Schedule(second="twin")),
    Row(
        "a graph for another bucket",
        planted(first_size_only, "divergence:shape"),
        no_second("bucket"),
        Schedule(second="bucket"),
    ),
    Row(
        "the other graph dies",
        planted(cleared_with_any_graph, "dangling_buffer"),
        NOBODY_DIES,
        Schedule(second="twin", second_dies=True),
    ),
    Row("churn", planted(owned_by_a_cycle, "dangling_buffer"), NO_CHURN, Schedule(between="churn")),
    Row("a larger eager run", scheduled(test_schedule.growing), NOTHING_LARGER, Schedule(between="larger")),
    Row("an eager call between", scheduled(test_schedule.skips_staging), NO_EAGER_BETWEEN, Schedule(eager_between=True)),
    Row("eager in another layout", scheduled(test_schedule.blind), ONE_LAYOUT, Schedule(eager_layout="contiguous")),
    # observables
    Row("outputs", report("torchtitan_3893"), Way(device=OutputsHidden, target=no_reference)),
    Row("changed inputs", report("infinilm_540"), Way(case=same_inputs)),
    Row("fewer rows than the bucket", report("lmdeploy_4569"), Way(case=full_batches)),
    Row("poison", report("xllm_1939"), Way(patch=no_poison, target=no_reference), on=Way(target=no_reference)),
    Row("dangling memory", report("aiter_4587"), Way(patch=no_dangling)),
    Row(
        "the last step again",
        report("tensorrt_llm_7737"),
        Way(case=steps_apart, patch=no_repeat),
        on=Way(case=steps_apart),
    ),
    Row(
        "the first step again",
        shipped("growing_workspace", "keeps_the_last_outgrown"),  # aiter 4587
        Way(patch=no_return),
        found=GROWING,
    ),
    Row("a seed for each step", report("pytorch_84967"), Way(device=OneSeed), on=Way(device=SeedOfCapture)),
    Row("the reference", shipped("kv_cache_write", "garbage_in_the_null_block"), Way(target=no_reference)),  # sglang 32477
    Row("laws", shipped("metadata_builders", "fills_shared_lengths"), Way(target=no_laws)),  # vLLM 53821
    Row("host buffers", shipped("token_to_req_indices", "clears_mirror"), Way(device=HostBuffersHidden)),  # vLLM 51585
    Row(
        "held answers",
        shipped("graph_cache", "answers_in_the_graphs_memory"),  # SGLang 23037
        Way(implementation=may_not_hold),
    ),
    Row("dtypes", shipped("graph_cache", "dtype_left_out"), Way(patch=no_dtypes), VALUE(axis="dtype")),  # flashinfer 4146
    Row("device buffers", planted(scribbles_in_the_graph, "divergence:values"), Way(device=DeviceBuffersHidden)),
    Row("guard zones", planted(writes_behind_the_end, "divergence:out_of_bounds"), Way(device=GuardsHidden)),
    Row("host numbers", planted(counts_on_the_host, "divergence:stale_host_value"), Way(patch=no_host_numbers)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.what}: {row.fault.name}")
def test_a_fault_is_missed_without_it(row: Row) -> None:
    cases = row.cases()
    assert row.fault.label in judged(row.fault, cases, row.on, until=row.fault.label)
    assert judged(row.fault, cases, row.off) == {"equivalent"}


@pytest.mark.parametrize("name", ["pytorch_185074", "triton_10596"])
def test_a_fault_is_missed_without_a_cold_start(name: str) -> None:
    """In worker processes, where a cold start is one."""
    fault = report(name)
    plain = warm_cases(fault.target, CASES)
    cold = [case.with_schedule(Schedule(warm_ups=0)) for case in plain[:3]]
    with WorkerPool(variant(fault.target, FAULTY), "sim") as pool:
        assert fault.label in {pool.judge(case, only="").label for case in cold}
        warm = [NO_COLD_START.case(fault.target, case) for case in cold + plain]
        assert {pool.judge(case, only="").label for case in warm} == {"equivalent"}


def test_every_dimension_of_a_schedule_is_in_the_table() -> None:
    schedules = [case.schedule for case in drawn(get_target("fold_indptr").strategy(), 2000, 1)]
    kinds = {name: {getattr(schedule, name) for schedule in schedules} for name in Schedule.__struct_fields__}
    needed = [Schedule(warm_ups=0), *(row.schedule for row in ROWS if row.schedule is not None)]
    assert kinds.pop("warm_ups") == {0, 1, 2, 3}  # a third warm-up is a second one once more
    assert {0, 2} <= {schedule.warm_ups for schedule in needed}
    assert kinds.pop("between") == {"nothing", "churn", "larger", "both"}  # both is the two
    assert {"churn", "larger"} <= {schedule.between for schedule in needed}
    del kinds["axis"]  # goes with `second`
    for name, seen in kinds.items():
        assert {getattr(schedule, name) for schedule in [Schedule(), *needed]} == seen, name


def judged(fault: Fault, cases: Sequence[Case], way: Way, until: str | None = None) -> set[str]:
    """The labels of all cases, or of those up to the first that is `until`."""
    target, found = way.target(fault.target), set[str]()
    gc.collect()
    gc.disable()  # the collector runs where a schedule says so
    try:
        with pytest.MonkeyPatch.context() as patch, way.device() as device:
            way.patch(patch)
            for case in cases:
                subject = Subject(target, fault.name, way.implementation(fault.make()))
                found.add(InProcess(device, subject).judge(way.case(target, case), only="").label)
                if until in found:
                    break
    finally:
        gc.enable()
    return found
