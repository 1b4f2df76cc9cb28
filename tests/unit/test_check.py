"""Every verdict and every cause of the check, each shown by a planted fault, with the line that is blamed for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from capfuzz.devices import Device
from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Outcome, check, explain

A = np.array([1, 4, 0, 5], np.int32)
B = np.array([2, 2, 7, 1], np.int32)
Body = Callable[..., Any]


def feeds(*arrays: np.ndarray, **host: Argument) -> list[dict[str, Argument]]:
    return [{"x": Argument(array), **host} for array in arrays or (A, B)]


def run(device: Device, body: Body, *, reference: Any = None, steps: Any = None) -> Outcome:
    given = steps or feeds()
    return explain(device, body, given, reference, check(device, body, given, reference))


def blamed_text(outcome: Outcome) -> str:
    assert outcome.blame.location is not None, outcome
    return outcome.blame.location.text


# -- right code --------------------------------------------------------------------------------------------------------


def right(x: torch.Tensor) -> dict[str, Any]:
    """Nested structures, an in-place write to an argument, a host scalar that is the same every time."""
    x.add_(1)
    return {"sum": x.cumsum(0), "pair": (x * 2, [x > 3]), "rows": x.numel(), "none": None}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_right_code_is_equivalent_in_every_layout(device: Device, layout: str) -> None:
    steps = [{"x": Argument(array, LAYOUTS[layout])} for array in (A, B)]
    assert run(device, right, steps=steps).label == "equivalent"


def test_no_changed_inputs_is_a_legal_case(device: Device) -> None:
    assert run(device, right, steps=feeds(A)).label == "equivalent"


def test_empty_input_is_a_legal_case(device: Device) -> None:
    empty = np.zeros(0, np.int32)
    assert run(device, right, steps=feeds(empty, empty)).label == "equivalent"


def test_nan_equals_nan(device: Device) -> None:
    values = np.array([np.nan, 1.0], np.float32)
    assert run(device, lambda x: x * 2, steps=feeds(values, values[::-1].copy())).label == "equivalent"


def test_random_ops_replay_what_eager_drew(device: Device) -> None:
    assert run(device, lambda x: torch.rand(4, device=x.device) + x).label == "equivalent"


# -- capture errors ----------------------------------------------------------------------------------------------------


def stores_scalar(x: torch.Tensor) -> torch.Tensor:
    x[0] = 3
    return x


def reads_value(x: torch.Tensor) -> torch.Tensor:
    return x + x.max().item()


def leaves_a_stream(x: torch.Tensor) -> torch.Tensor:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return x + 1


def waits_for_outside_work(x: torch.Tensor) -> torch.Tensor:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        event = torch.cuda.Event()
        event.record()
    torch.cuda.current_stream().wait_event(event)
    return x + 1


def captures_inside(x: torch.Tensor) -> torch.Tensor:
    if torch.cuda.is_current_stream_capturing():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass
    return x + 1


def raises_on_the_capture_path(x: torch.Tensor) -> torch.Tensor:
    if torch.cuda.is_current_stream_capturing():
        raise KeyError("no such bucket")
    return x + 1


@pytest.mark.parametrize(
    ("body", "rule", "line", "says"),
    [
        (stores_scalar, "host_copy", "x[0] = 3", "Cannot copy between CPU and CUDA tensors"),
        (reads_value, "synchronization", "return x + x.max().item()", "operation not permitted when stream is capturing"),
        (waits_for_outside_work, "foreign_stream", "torch.cuda.current_stream().wait_event(event)", "uncaptured work"),
        (captures_inside, "nested_capture", "with torch.cuda.graph(torch.cuda.CUDAGraph()):", "not permitted"),
        (raises_on_the_capture_path, "host_exception", 'raise KeyError("no such bucket")', "no such bucket"),
    ],
)
def test_a_capture_error_names_its_rule_its_line_and_cudas_message(
    device: Device, body: Body, rule: str, line: str, says: str
) -> None:
    outcome = run(device, body)
    assert outcome.label == f"capture_error:{rule}"
    assert blamed_text(outcome) == line
    assert says in outcome.message


def test_work_that_never_joins_the_capture(device: Device) -> None:
    outcome = run(device, leaves_a_stream)
    assert outcome.label == "capture_error:unjoined_stream"
    assert "unjoined work" in outcome.message


def test_the_device_survives_a_failed_capture(device: Device) -> None:
    for body in (stores_scalar, reads_value, leaves_a_stream, captures_inside):
        run(device, body)
        assert run(device, right).label == "equivalent"


# -- divergences -------------------------------------------------------------------------------------------------------


def bakes_host_value(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    limit = int(host.max())
    return x.clamp(max=limit)


def test_a_value_baked_at_capture_is_stale(device: Device) -> None:
    steps = [
        {"x": Argument(A), "host": Argument(np.array([3], np.int32), space=Space.HOST)},
        {"x": Argument(B), "host": Argument(np.array([1], np.int32), space=Space.HOST)},
    ]
    outcome = run(device, bakes_host_value, steps=steps)
    assert outcome.label.startswith("divergence:")
    assert blamed_text(outcome) == "return x.clamp(max=limit)"


def repeats_the_first_answer() -> Body:
    cache: list[torch.Tensor] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            cache[:] = [x.clone()]
        return cache[0] + 0

    return body


def test_a_replay_that_repeats_the_captured_answer_is_stale(device: Device) -> None:
    outcome = run(device, repeats_the_first_answer())
    assert outcome.label == "divergence:stale_host_value"
    assert outcome.mismatch is not None
    assert outcome.mismatch.captured is not None
    assert np.array_equal(outcome.mismatch.actual, outcome.mismatch.captured)


def leaves_the_first_unwritten(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(5, dtype=torch.int32, device=x.device)
    out[1:] = x
    return out


def test_an_element_that_nobody_writes(device: Device) -> None:
    outcome = run(device, leaves_the_first_unwritten)
    assert outcome.label == "divergence:unwritten_output"
    assert blamed_text(outcome).startswith("out = torch.empty(5")
    assert outcome.mismatch is not None
    assert outcome.mismatch.indices() == [(0,)]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64]
)
def test_unwritten_memory_differs_in_every_dtype(device: Device, dtype: torch.dtype) -> None:
    outcome = run(device, lambda x: torch.empty(4, dtype=dtype, device=x.device))
    assert outcome.label == ("divergence:values" if dtype is torch.bool else "divergence:unwritten_output")


def test_state_that_grows_with_every_replay_is_not_idempotent(device: Device) -> None:
    state: list[torch.Tensor] = []

    def grows(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            state[:] = [torch.zeros(4, dtype=torch.int32, device=x.device)]
        state[0].add_(x)
        return state[0]

    outcome = run(device, grows)
    assert outcome.label == "divergence:not_idempotent"
    assert blamed_text(outcome).startswith("state[:] = [torch.zeros(4")  # what eager does each time and the graph never


def zeroes_host_offsets(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    x.zero_()
    host.zero_()
    return x


def test_a_host_buffer_that_only_capture_changes(device: Device) -> None:
    """The vLLM report: preparing for capture zeroed the host copy that later builders read."""
    host = Argument(A, space=Space.HOST)
    outcome = run(device, zeroes_host_offsets, steps=feeds(host=host))
    assert outcome.label == "divergence:host_state"
    assert outcome.mismatch is not None
    assert outcome.mismatch.path == "buffer host"


def writes_behind(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((5,), (1,)).add_(1)
    return x + 0


def test_a_write_behind_the_buffer(device: Device) -> None:
    assert run(device, writes_behind).label == "divergence:out_of_bounds"


def _when_capturing(during_capture: Body, otherwise: Body) -> Body:
    return lambda x: (during_capture if torch.cuda.is_current_stream_capturing() else otherwise)(x)


@pytest.mark.parametrize(
    ("during_capture", "cause"),
    [
        (lambda x: (x + 1)[:2], "shape"),
        (lambda x: (x + 1).long(), "dtype"),
        (lambda x: [x + 1, x], "structure"),
        (lambda x: x + 101, "values"),
    ],
)
def test_another_path_under_capture(device: Device, during_capture: Body, cause: str) -> None:
    assert run(device, _when_capturing(during_capture, lambda x: x + 1)).label == f"divergence:{cause}"


def test_a_device_buffer_is_compared_and_not_only_outputs(device: Device) -> None:
    outcome = run(device, _when_capturing(lambda x: None, lambda x: (x.add_(1), None)[1]))
    assert outcome.label.startswith("divergence:")


def test_memory_that_its_owner_drops_after_the_capture(device: Device) -> None:
    table: dict[str, torch.Tensor] = {}

    def looks_up(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            return x + 3
        table["t"] = torch.full_like(x, 3)
        return x + 3

    def evicts(x: torch.Tensor) -> torch.Tensor:
        outside = outside_tables.pop() if torch.cuda.is_current_stream_capturing() else torch.full_like(x, 3)
        return x + outside

    outside_tables = [device.eager(lambda: torch.full((4,), 3, dtype=torch.int32, device="cuda"), 0)]
    assert run(device, looks_up).label == "equivalent"
    outcome = run(device, evicts)
    assert outcome.label == "dangling_buffer"
    assert blamed_text(outcome) == "return x + outside"


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_eager_that_raises(device: Device) -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        return x.view(7)

    outcome = run(device, raises)
    assert outcome.label == "eager_error:RuntimeError"
    assert blamed_text(outcome) == "return x.view(7)"


def test_sys_exit_in_the_implementation_is_its_fault(device: Device) -> None:
    def leaves(x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)

    assert run(device, leaves).label == "eager_error:SystemExit"


def test_ctrl_c_is_not_a_verdict(device: Device) -> None:
    def interrupted(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(device, interrupted, feeds())


def test_eager_that_disagrees_with_itself(device: Device) -> None:
    calls = iter(range(99))
    assert run(device, lambda x: x + next(calls)).label == "nondeterministic"


def test_eager_and_replay_that_are_wrong_together(device: Device) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    outcome = run(device, doubled, reference=lambda x: x * 3)
    assert outcome.label == "reference_mismatch"
    assert blamed_text(outcome) == "return x * 2"
    assert run(device, doubled, reference=lambda x: x * 2).label == "equivalent"


@pytest.mark.parametrize("reference", [lambda x: x.astype(np.int64), lambda x: x[:2], lambda x: [x]])
def test_the_reference_must_agree_in_dtype_shape_and_structure(device: Device, reference: Body) -> None:
    assert run(device, lambda x: x + 0, reference=reference).label == "reference_mismatch"


def test_a_capture_error_hides_what_comes_after_it(device: Device) -> None:
    assert run(device, stores_scalar, reference=lambda x: x * 3).label == "capture_error:host_copy"


def test_the_implementation_may_be_a_partial_or_decorated(device: Device) -> None:
    @functools.wraps(right)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return right(*args, **kwargs)

    assert run(device, functools.partial(wrapped)).label == "equivalent"


def test_inputs_of_one_run_never_reach_the_next(device: Device) -> None:
    """Every eager run has fresh buffers, every replay fresh contents."""

    def destructive(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        x.fill_(-1)
        return out

    assert run(device, destructive).label == "equivalent"
