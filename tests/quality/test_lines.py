"""Which line is blamed, rule by rule, in code that nobody has registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from capfuzz.devices import Device
from capfuzz.devices.layout import CONTIGUOUS, LAYOUTS, Argument, Layout, Space
from capfuzz.differential import SIMPLY, Drive, LawCall, Mode, Outcome, Runner, Schedule, TwoPart, check, explain

A, B = np.array([1, 4, 0, 5]), np.array([2, 2, 7, 1])


def run(device: Device, body: Any, reference: Any = None, layout: Layout = CONTIGUOUS, drive: Drive = SIMPLY) -> Outcome:
    feeds = [{"x": Argument(array, layout), "host": Argument(array * 3, space=Space.PINNED)} for array in (A, B)]
    return explain(device, body, feeds, reference, check(device, body, feeds, reference, drive=drive), drive=drive)


def line(outcome: Outcome) -> str:
    assert outcome.blame.location is not None, outcome
    return outcome.blame.location.text


# -- host memory -------------------------------------------------------------------------------------------------------


def clears(host: torch.Tensor) -> None:
    host[:2].zero_()


def test_a_host_buffer_is_blamed_on_the_line_that_wrote_it(device: Device) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            clears(host)
        return x + host.numel()

    outcome = run(device, body)
    assert outcome.label == "divergence:host_state"
    assert (line(outcome), outcome.blame.op) == ("host[:2].zero_()", "zero_")


def test_a_host_buffer_that_the_hosts_part_wrote_for_the_capture(device: Device) -> None:
    def prepare(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> None:
        host.mul_(1)
        if mode is Mode.CAPTURE:
            clears(host)

    def body(prepared: None, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert line(run(device, TwoPart(prepare, body))) == "host[:2].zero_()"


def test_what_numpy_writes_is_no_op_and_some_line_is_blamed_all_the_same(device: Device) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            host.numpy()[:] = 0
        return x + 1

    outcome = run(device, body)
    assert outcome.label == "divergence:host_state"
    assert line(outcome) == "return x + 1"


def asserts(host: torch.Tensor) -> int:
    assert host.max() > 0, "nothing is there"
    return 1


def test_an_exception_is_blamed_on_what_the_capture_path_did_to_the_host(device: Device) -> None:
    """The vLLM report: preparing for the capture zeroed what a later builder asserts on."""

    def prepare(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> int:
        offsets = host.clone()
        offsets.add_(0)
        if mode is Mode.CAPTURE:
            offsets.zero_()
        return asserts(offsets)

    outcome = run(device, TwoPart(prepare, lambda prepared, x, host: x + prepared))
    assert outcome.label == "capture_error:host_exception"
    assert line(outcome) == "offsets.zero_()"
    assert outcome.message.startswith("nothing is there (raised by 'assert host.max() > 0, ")


def test_an_exception_that_nothing_explains_is_blamed_on_its_own_line(device: Device) -> None:
    def prepare(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> None:
        host.mul_(1)
        if mode is Mode.CAPTURE:
            raise KeyError("no such bucket")

    outcome = run(device, TwoPart(prepare, lambda prepared, x, host: x + 1))
    assert outcome.label == "capture_error:host_exception"
    assert line(outcome) == 'raise KeyError("no such bucket")'
    assert "raised by" not in outcome.message


# -- memory that is gone -----------------------------------------------------------------------------------------------


def staged(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def test_freed_memory_is_blamed_on_the_own_line_that_makes_other_memory_each_time(device: Device) -> None:
    def prepare(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return staged(x)

    def body(prepared: torch.Tensor, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return x + prepared

    outcome = run(device, TwoPart(prepare, body))
    assert outcome.label == "dangling_buffer"
    assert line(outcome) == "return staged(x)"
    assert "return x + prepared" in outcome.message


def test_freed_memory_that_was_made_elsewhere_is_blamed_on_who_reads_it(device: Device) -> None:
    tables = [device.eager(lambda: torch.full((4,), 3, device="cuda"), 0)]

    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return x + (tables.pop() if torch.cuda.is_current_stream_capturing() else 3)

    outcome = run(device, body)
    assert outcome.label == "dangling_buffer"
    # The fault is gone with the table when the check is told again, and the reader stays.
    assert line(outcome).startswith("return x + (tables.pop()")


def runner_that(answers: Callable[..., Any]) -> Runner:
    def make() -> Callable[..., torch.Tensor]:
        state: dict[str, Any] = {}

        def call(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
            return answers(state, x)  # type: ignore[no-any-return]

        return call

    return Runner(lambda x, host: x + 1, make)


def captured(state: dict[str, Any], x: torch.Tensor, more: torch.Tensor | int = 1) -> None:
    state["x"] = x.clone()
    state["graph"] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(state["graph"]):
        state["out"] = state["x"] + more


def test_a_runner_that_lets_go_of_what_its_graph_reads(device: Device) -> None:
    def answers(state: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        if not state:
            state["one"] = torch.ones_like(x)
            captured(state, x, state["one"])
        state["x"].copy_(x)
        state["graph"].replay()
        answer: torch.Tensor = state["out"].clone()
        state.pop("one", None)
        return answer

    outcome = run(device, runner_that(answers))
    assert outcome.label == "dangling_buffer"
    assert line(outcome) == 'state.pop("one", None)'


# -- a runner's answers ------------------------------------------------------------------------------------------------


def test_a_runners_answer_is_blamed_on_the_line_that_handed_it_out(device: Device) -> None:
    def answers(state: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        if not state:
            captured(state, x)
        state["x"].copy_(x)
        state["graph"].replay()
        return state["out"][: x.numel()]  # type: ignore[no-any-return]

    outcome = run(device, runner_that(answers))
    assert outcome.label == "divergence:aliased_output"
    assert line(outcome).startswith('return state["out"][: x.numel()]')


def test_a_runners_wrong_answer_is_blamed_on_what_wrote_it(device: Device) -> None:
    def answers(state: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        if not state:
            captured(state, x)
        state["graph"].replay()
        return state["out"].clone()  # type: ignore[no-any-return]

    outcome = run(device, runner_that(answers))
    assert outcome.label == "divergence:stale_host_value"
    assert line(outcome).startswith('return state["out"].clone()')


# -- wrong answers of eager calls --------------------------------------------------------------------------------------


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() + 1


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "contiguous"])
def test_a_view_that_is_read_wrong_is_blamed_and_not_what_is_made_of_it(device: Device, layout: str) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        y = plus_one(x)
        flat = torch.as_strided(x, x.shape, (1,), 0)
        return plus_one(flat) + y

    outcome = run(device, body, lambda x, host: 2 * x + 2, LAYOUTS[layout])
    assert outcome.label == "reference_mismatch"
    assert line(outcome) == "flat = torch.as_strided(x, x.shape, (1,), 0)"


def test_an_answer_that_is_wrong_in_any_layout_is_blamed_on_who_wrote_it(device: Device) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return plus_one(plus_one(x))

    assert line(run(device, body, lambda x, host: x + 1, LAYOUTS["column"])) == "return plus_one(plus_one(x))"


def test_of_several_wrong_outputs_the_one_that_was_finished_first(device: Device) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> dict[str, torch.Tensor]:
        doubled = x * 3
        right = x + 1
        return {"right": right, "last": doubled.sum(0, keepdim=True), "first": doubled}

    outcome = run(device, body, lambda x, host: {"right": x + 1, "last": 2 * x.sum(keepdims=True), "first": 2 * x})
    assert outcome.mismatch is not None and outcome.mismatch.path == "output['last']"
    assert line(outcome) == "doubled = x * 3"


def test_a_view_of_what_is_right_is_blamed_where_it_is_made(device: Device) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y[1:]

    assert line(run(device, body, lambda x, host: (x + 1)[:-1])) == "return y[1:]"


def test_a_buffer_that_the_hosts_part_staged_wrong(device: Device) -> None:
    def prepare(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> None:
        x[2:].fill_(9)

    def body(prepared: None, x: torch.Tensor, host: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x.sum(0, keepdim=True), "x": x}

    def reference(x: np.ndarray, host: np.ndarray) -> dict[str, np.ndarray]:
        return {"sum": x.sum(keepdims=True), "x": x}

    assert line(run(device, TwoPart(prepare, body), reference)) == "x[2:].fill_(9)"


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def test_what_runs_no_op_is_blamed_on_its_definition_behind_its_decorators(device: Device) -> None:
    @decorated
    @decorated
    def body(x: torch.Tensor, host: torch.Tensor) -> int:
        return 4

    assert line(run(device, body, lambda x, host: 5)) == "def body(x: torch.Tensor, host: torch.Tensor) -> int:"


# -- replays -----------------------------------------------------------------------------------------------------------


def test_the_hosts_part_before_a_replay_is_compared_too(device: Device) -> None:
    """What eager calls and replays both prepare is nobody's fault."""

    def prepare(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> None:
        x.add_(1)
        x.mul_(2)

    def body(prepared: None, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        frozen = torch.tensor(host.tolist()).pin_memory()
        return x + frozen.to(x.device, non_blocking=True)

    assert line(run(device, TwoPart(prepare, body))) == "return x + frozen.to(x.device, non_blocking=True)"


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(eager_layout="contiguous")])
def test_a_copy_that_only_one_layout_takes_is_nobodys_fault(device: Device, schedule: Schedule) -> None:
    """One fault has one line, however it was met."""

    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        y = plus_one(x)
        y[int(host[0]) :].zero_()
        return y

    outcome = run(device, body, layout=LAYOUTS["column"], drive=Drive(schedule))
    assert outcome.label == "divergence:stale_host_value"
    assert line(outcome) == "y[int(host[0]) :].zero_()"


def test_what_only_eager_on_plain_memory_gets_right_is_blamed_on_the_view(device: Device) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        flat = torch.as_strided(x, x.shape, (1,), 0)
        return plus_one(flat)

    outcome = run(device, body, layout=LAYOUTS["column"], drive=Drive(Schedule(eager_layout="contiguous")))
    assert outcome.label == "divergence:values"
    assert line(outcome) == "flat = torch.as_strided(x, x.shape, (1,), 0)"


def test_what_only_another_warm_up_shows_is_blamed_on_the_last_write(device: Device) -> None:
    def body(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        twice = x * 2
        x.add_(1)
        return twice + 0

    outcome = run(device, body, drive=Drive(Schedule(warm_ups=2)))
    assert outcome.label == "divergence:not_idempotent"
    assert line(outcome) == "return twice + 0"


def test_a_law_that_is_broken_in_one_layout_is_blamed_on_the_view(device: Device) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        flat = torch.as_strided(x, x.shape, (1,), 0)
        return flat + 1

    def adds_one(call: LawCall) -> str | None:
        return None if np.array_equal(call.outputs, call.inputs["x"] + 1) else "it does not"

    feeds = [{"x": Argument(A, LAYOUTS["strided"])}]
    outcome = check(device, body, feeds, None, {"adds_one": adds_one})
    assert outcome.label == "invariant:adds_one"
    assert line(explain(device, body, feeds, None, outcome, {"adds_one": adds_one})) == (
        "flat = torch.as_strided(x, x.shape, (1,), 0)"
    )
