"""The op trace: what a tracer is told of a capture, and that it changes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from capfuzz.conformance import comparison
from capfuzz.conformance.suite import suite
from capfuzz.devices import Device
from capfuzz.devices.layout import Argument
from capfuzz.devices.sim import sim
from capfuzz.devices.trace import Operand, OpRecord
from capfuzz.devices.tracer import CaptureTrace, Tracer, trace_capture
from capfuzz.targets import get_target

SEED = 3
Body = Callable[[], Any]


def traced(device: Device, body: Body) -> list[OpRecord]:
    trace = trace_capture(device, body, SEED)
    assert trace.error is None, trace.error
    return trace.records


def fates(device: Device, body: Body) -> list[tuple[str, str]]:
    return [(record.op, record.fate) for record in traced(device, body)]


@pytest.fixture
def x(device: Device) -> torch.Tensor:
    """Four numbers on the device, made before the capture."""
    return device.buffer(Argument(np.arange(4, dtype=np.int32))).tensor


def test_a_record_has_line_operands_and_fate(device: Device, x: torch.Tensor) -> None:
    [record] = traced(device, lambda: torch.cumsum(x, 0))
    assert record.location is not None
    assert "torch.cumsum(x, 0)" in record.location.text
    assert (record.op, record.kind, record.fate, record.baked, record.values) == ("cumsum", "kernel", "recorded", (), [])
    assert record.read == (Operand("int32", (4,), "cuda"),)
    assert record.written == (Operand("int64", (4,), "cuda"),)


@pytest.mark.parametrize(
    ("body", "baked"),
    [
        (lambda x: x + 3, (3,)),
        (lambda x: x * 2.5, (2.5,)),
        (lambda x: torch.add(x, x, alpha=4), (4,)),
        (lambda x: torch.add(x, x, alpha=1), ()),  # the default: nobody's value
        (lambda x: x.fill_(7), (7,)),
        (lambda x: x.clamp(min=1), (1,)),
        (lambda x: x.clamp_(-1, 2), (-1, 2)),
        (lambda x: x & True, (True,)),
        (lambda x: torch.full((2,), 9, device="cuda"), (9,)),
        (lambda x: torch.cumsum(x, 0), ()),  # a dimension is no value
        (lambda x: x.view(2, 2).sum(1), ()),
        (lambda x: torch.full_like(x, 5), (5,)),
    ],
)
def test_host_scalars_are_baked(device: Device, x: torch.Tensor, body: Callable[..., Any], baked: tuple[Any, ...]) -> None:
    record = traced(device, lambda: body(x))[-1]
    assert record.baked == baked
    assert record.fate == ("baked" if baked else "recorded")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_host_tensor_is_baked_with_its_value(device: Device, x: torch.Tensor, dtype: torch.dtype) -> None:
    scalar = torch.tensor(1.5, dtype=dtype)
    [record] = traced(device, lambda: x * scalar)
    assert record.baked == (1.5,)
    assert record.read[1] == Operand(str(dtype).removeprefix("torch."), (), "cpu")


def test_the_value_is_that_of_the_capture(device: Device, x: torch.Tensor) -> None:
    scalar = torch.tensor(1)
    body = lambda: x.add(scalar.add_(1))  # noqa: E731  (2 while warming up, 3 at capture)
    assert traced(device, body)[-1].baked == (3,)


def test_in_place_ops_read_what_they_write_unless_they_overwrite_it(device: Device, x: torch.Tensor) -> None:
    added, filled, copied = traced(device, lambda: (x.add_(x), x.zero_(), x.copy_(x)))
    four = Operand("int32", (4,), "cuda")
    assert (added.read, added.written) == ((four, four), (four,))
    assert (filled.read, filled.written) == ((), (four,))
    assert (copied.read, copied.written) == ((four,), (four,))


def test_out_is_written_only(device: Device, x: torch.Tensor) -> None:
    [record] = traced(device, lambda: torch.add(x, x, out=x))
    assert (len(record.read), len(record.written)) == (2, 1)


def test_views_allocations_and_factories(device: Device, x: torch.Tensor) -> None:
    def body() -> None:
        x[1:].view(3, 1)
        x.unsqueeze_(0).squeeze_(0)
        torch.empty(2, device="cuda")
        torch.zeros(2, device="cuda")

    assert fates(device, body) == [
        ("slice.Tensor", "view"),
        ("view", "view"),
        ("unsqueeze_", "view"),
        ("squeeze_.dim", "view"),
        ("empty.memory_format", "alloc"),
        ("zeros", "recorded"),
    ]


def test_a_detach_of_the_users_stays(device: Device, x: torch.Tensor) -> None:
    assert fates(device, lambda: (x + x).detach()) == [("add.Tensor", "recorded"), ("detach", "view")]
    assert fates(device, lambda: torch.zeros_like(x).detach()) == [("zeros_like", "recorded"), ("detach", "view")]
    assert fates(device, lambda: torch.zeros_like(x)) == [("zeros_like", "recorded")], "PyTorch's own is none"


def test_the_host_works_at_capture_only(device: Device, x: torch.Tensor) -> None:
    def body() -> Any:
        host = torch.arange(4)
        host[0] = 5
        host[1:].add_(1)
        staged = host.to(torch.int32).pin_memory()
        x.copy_(staged, non_blocking=True)
        return int(host[0]), bool(host[1]), host.tolist(), np.asarray(host), [0, 1][staged[1] * 0]

    seen = fates(device, body)
    assert [op for op, fate in seen if fate != "host"] == ["copy_"]
    assert {op for op, fate in seen if fate == "host"} >= {
        "arange",
        "copy_",
        "add_.Tensor",
        "_to_copy",
        "_pin_memory",
        "__int__",
        "__bool__",
        "tolist",
        "__array__",
        "__index__",
    }
    assert not any(op in ("_local_scalar_dense", "detach") for op, _ in seen)


def test_a_copy_between_host_and_device(device: Device, x: torch.Tensor) -> None:
    [record] = traced(device, lambda: x.to("cpu", non_blocking=True))
    assert (record.op, record.kind, record.fate) == ("copy_", "copy", "recorded")
    assert (record.read[0].device, record.written[0].device) == ("cuda", "cpu")


def test_work_beside_the_capture(device: Device, x: torch.Tensor) -> None:
    side = torch.cuda.Stream()

    def body() -> None:
        x.add_(x)
        with torch.cuda.stream(side):
            x.mul_(x)
            x.copy_(torch.ones(4, dtype=torch.int32))

    assert fates(device, body) == [
        ("add_.Tensor", "recorded"),
        ("mul_.Tensor", "at once"),
        ("ones", "host"),
        ("copy_", "at once"),
    ]


def test_a_stream_that_has_joined_is_in_the_capture(device: Device, x: torch.Tensor) -> None:
    side = torch.cuda.Stream()

    def body() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul_(x)
        torch.cuda.current_stream().wait_stream(side)

    assert fates(device, body) == [("mul_.Tensor", "recorded")]


def test_random_ops_show_as_what_they_are(device: Device, x: torch.Tensor) -> None:
    assert fates(device, lambda: torch.rand(2, device="cuda")) == [("rand", "recorded")]


def test_the_trace_ends_where_the_capture_fails(device: Device, x: torch.Tensor) -> None:
    trace = trace_capture(device, lambda: x.add(x).sum().item() + x.sum(), SEED)
    assert [record.op for record in trace.records] == ["add.Tensor", "sum"]
    assert isinstance(trace.error, torch.AcceleratorError)
    assert not trace.warm_up
    assert fates(device, lambda: x.add(x)) == [("add.Tensor", "recorded")], "the device is in order again"


def test_what_the_eager_call_raises(device: Device) -> None:
    def body() -> None:
        raise SystemExit(4)

    trace = trace_capture(device, body, SEED)
    assert isinstance(trace.error, SystemExit)
    assert (trace.records, trace.warm_up) == ([], True)


def test_buffers_are_refilled_before_the_capture(device: Device, x: torch.Tensor) -> None:
    order: list[str] = []
    assert trace_capture(device, lambda: order.append("call"), SEED, lambda: order.append("refill")) == CaptureTrace()
    assert order == ["call", "refill", "call"]


def test_other_traces_have_no_host_work(device: Device, x: torch.Tensor) -> None:
    """Blame compares an eager trace with that of a replay, which has none."""
    tracer = Tracer(values=True)
    device.eager(lambda: (torch.ones(3).numpy(), x.add(1)), SEED, tracer)
    assert [record.op for record in tracer.records] == ["add.Tensor"]
    assert tracer.records[0].values[0].tolist() == [1, 2, 3, 4]


def test_a_capture_tells_only_a_tracer_of_captures(device: Device, x: torch.Tensor) -> None:
    tracer = Tracer(values=True)
    device.capture(lambda: (torch.ones(3).numpy(), x[1:].add(1)), SEED, tracer).close()
    assert tracer.records == []


def test_a_traced_capture_replays_as_any_other(device: Device, x: torch.Tensor) -> None:
    tracer = Tracer(of_capture=True)
    graph = device.capture(lambda: torch.cumsum(x + 1, 0), SEED, tracer)
    told = len(tracer.records)
    graph.replay(SEED)
    assert device.read(graph.result).tolist() == [1, 3, 6, 10]
    assert len(tracer.records) == told == 2
    graph.close()


def test_records_hold_no_tensors(device: Device, x: torch.Tensor) -> None:
    """What a trace held on to would change which memory a graph may use again."""
    for record in traced(device, lambda: (x * torch.tensor(2), torch.cat([x, x]))):
        for value in (*record.baked, *record.read, *record.written):
            assert not isinstance(value, torch.Tensor)


@pytest.mark.parametrize("name", sorted(get_target("fold_indptr").variants))
def test_tracing_changes_no_capture(device: Device, name: str) -> None:
    function = get_target("fold_indptr").variants[name].function
    indptr = device.buffer(Argument(np.array([0, 2, 2, 5], dtype=np.int32))).tensor

    def result(tracer: Tracer | None) -> Any:
        device.eager(lambda: function(indptr, 2), SEED)
        try:
            graph = device.capture(lambda: function(indptr, 2), SEED, tracer)
        except RuntimeError as error:
            return str(error)
        graph.replay(SEED)
        return device.read(graph.result).tolist()

    assert result(Tracer(of_capture=True)) == result(None)


def test_tracing_changes_no_idiom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the conformance suite with a tracer told of everything."""

    @contextmanager
    def traced_sim() -> Any:
        with sim() as runtime:
            runtime.tracer = Tracer(of_capture=True)
            yield runtime

    idioms = list(suite().values())[::20]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about what idioms do on purpose
        plain = [comparison.simulate(idiom) for idiom in idioms]
        monkeypatch.setattr(comparison, "sim", traced_sim)
        assert [comparison.simulate(idiom) for idiom in idioms] == plain
