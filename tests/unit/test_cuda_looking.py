"""How closely the real device looks at user code, without a GPU: the CPU stands in for one, eager code for a replay.

`stand_in` puts a fake under `torch.cuda`'s graphs and says that every tensor lies on a GPU. What a GPU does is tested in
tests/cuda; here it is what capfuzz asks of it, and what it makes of the answers.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import poison
from capfuzz.devices.base import LookAgainError
from capfuzz.devices.cuda import device as cuda_device
from capfuzz.devices.cuda.calls import CallWatch
from capfuzz.devices.cuda.device import CudaDevice
from capfuzz.devices.cuda.watch import Watch
from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Verdict, check, explain
from capfuzz.differential.observe import outputs_of
from capfuzz.targets import Subject, get_target
from capfuzz.targets.judge import judge

SEED = 3
STEPS = 3
EAGER_VALUE = poison.value(torch.int64, poison.EAGER)
CAPTURE_VALUE = poison.value(torch.int64, poison.CAPTURE)


class StandInGraph:
    """Replays by calling what was captured again, and copying what it gives to where the capture's result lies."""

    capturing = False
    result: Any = None
    body: Callable[[], Any] = staticmethod(lambda: None)

    def capture_begin(self, pool: Any = None) -> None:
        StandInGraph.capturing = True

    def capture_end(self) -> None:
        StandInGraph.capturing = False
        self.again = StandInGraph.body

    def replay(self) -> None:
        StandInGraph.capturing = True
        try:
            with CallWatch(poison.CAPTURE):
                given = self.again()
        finally:
            StandInGraph.capturing = False
        if self.result is not given:
            self.result.copy_(given)

    def reset(self) -> None:
        self.again = lambda: None


class StandIn(CudaDevice):
    """The device over the fakes; it lets a graph know what was captured."""

    def _captured(self, body: Any, *rest: Any) -> Any:
        StandInGraph.body = staticmethod(body)
        graph, result, seen = super()._captured(body, *rest)
        assert isinstance(graph, StandInGraph)
        graph.result = result
        return graph, result, seen


class _Generator:
    def manual_seed(self, seed: int) -> None: ...
    def clone_state(self) -> None: ...
    def graphsafe_set_state(self, state: Any) -> None: ...


def _on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    return made


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stream = SimpleNamespace()
    for name, value in {
        "device_count": lambda: 1,
        "set_device": lambda index: None,
        "Stream": lambda: stream,
        "set_stream": lambda stream: None,
        "stream": lambda stream: memoryview(b""),
        "graph_pool_handle": lambda: (0, 1),
        "CUDAGraph": StandInGraph,
        "default_generators": [_Generator()],
        "is_current_stream_capturing": lambda: StandInGraph.capturing,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("_cuda_synchronize", "_cuda_getCurrentStream"):
        monkeypatch.setattr(torch._C, name, lambda *index: (0, 0, 0), raising=False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    for name in ("empty", "zeros"):
        monkeypatch.setattr(torch, name, _on_cpu(getattr(torch, name)))
    monkeypatch.setattr(CudaDevice, "__init__", _opened)
    monkeypatch.setattr(cuda_device, "USERS_WAY_EVERY", 10**9)  # `torch.cuda.graph` asks a GPU
    with StandIn() as device:
        assert isinstance(device, StandIn)
        yield device


def _opened(self: CudaDevice, number: int = 0) -> None:
    self._index, self._torch_device = 0, torch.device("cpu")


def feeds(values: int = 4) -> list[dict[str, Argument]]:
    return [{"x": Argument(np.arange(step, step + values))} for step in range(STEPS)]


def settle(device: StandIn) -> None:
    """Until the device looks less closely."""
    for _ in range(cuda_device.CLOSELY_AT_FIRST):
        assert check(device, lambda x: x + 1, feeds()).verdict is Verdict.EQUIVALENT


# -- the whole check ---------------------------------------------------------------------------------------------------


def test_cases_come_out_as_they_should_with_either_look(stand_in: StandIn) -> None:
    target = get_target("fold_indptr")
    for case in drawn(target.strategy(), 40, 1):
        outcome = check(stand_in, target.implementation, target.feeds(case), target.reference)
        assert outcome.verdict is Verdict.EQUIVALENT, outcome
    assert not stand_in._poisons
    assert not stand_in._op_by_op


@pytest.mark.parametrize("settled", [False, True])
def test_unwritten_memory_has_its_label_whenever_it_is_met(stand_in: StandIn, settled: bool) -> None:
    def unwritten(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(5, dtype=x.dtype)
        out[1:] = x
        return out

    if settled:
        settle(stand_in)
        assert not stand_in._poisons
    for _ in range(2):
        assert check(stand_in, unwritten, feeds()).label == "divergence:unwritten_output"
    assert stand_in._poisons


def test_a_warm_up_that_makes_empty_memory_sends_the_case_back_once(stand_in: StandIn) -> None:
    settle(stand_in)
    calls = []

    def filled(x: torch.Tensor) -> torch.Tensor:
        calls.append(torch.empty_like(x).copy_(x)[0].item())
        return x + 0

    assert check(stand_in, filled, feeds()).verdict is Verdict.EQUIVALENT
    first = len(calls)
    calls.clear()
    assert check(stand_in, filled, feeds()).verdict is Verdict.EQUIVALENT
    assert first == len(calls) + STEPS + 1  # the eager calls and the warm-up, again


def test_memory_that_died_is_looked_for_again_op_by_op(stand_in: StandIn) -> None:
    settle(stand_in)
    tables: list[torch.Tensor] = []

    def indexed(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            tables[:] = [torch.full((9,), 3)]
        out = tables[0][x]
        if torch.cuda.is_current_stream_capturing():
            tables[:] = [torch.full((9,), 3)]
        return out

    outcome = check(stand_in, indexed, feeds())
    assert outcome.verdict is Verdict.DANGLING_BUFFER
    assert outcome.blame.op == "index.Tensor"
    assert outcome.blame.location is not None and outcome.blame.location.text == "out = tables[0][x]"
    assert stand_in._op_by_op


def test_memory_whose_shape_alone_was_asked_for_may_die(stand_in: StandIn) -> None:
    settle(stand_in)
    tables: list[torch.Tensor] = []

    def asks(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            tables[:] = [torch.full((9,), 3)]
        table = tables.pop() if torch.cuda.is_current_stream_capturing() and tables else torch.full((9,), 3)
        size = table.shape[0] + table.numel() + len(table) + table.contiguous().dim() + table.to(table.dtype).dim()
        return x + size

    assert check(stand_in, asks, feeds()).verdict is Verdict.EQUIVALENT
    assert not stand_in._op_by_op


@pytest.mark.parametrize("settled", [False, True])
def test_a_capture_error_names_the_op(stand_in: StandIn, settled: bool) -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x, x[1:]]) if torch.cuda.is_current_stream_capturing() else x

    if settled:
        settle(stand_in)
    for _ in range(2):
        outcome = check(stand_in, breaks, feeds())
        assert outcome.label == "capture_error:host_exception"
        assert outcome.blame.op == "stack"
        assert outcome.blame.location is not None and outcome.blame.location.text.startswith("return torch.stack")
    assert check(stand_in, lambda x: x + 1, feeds()).verdict is Verdict.EQUIVALENT


def test_a_capture_error_that_does_not_come_again_is_told_without_its_op(stand_in: StandIn) -> None:
    settle(stand_in)
    failed: list[bool] = []

    def once(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing() and not failed:
            failed.append(True)
            raise ValueError("at the first capture")
        return x + 1

    outcome = check(stand_in, once, feeds())
    assert (outcome.label, outcome.message) == ("capture_error:host_exception", "at the first capture")
    assert outcome.blame.op is None


def test_what_the_calls_do_not_show_keeps_the_look_at_ops(stand_in: StandIn) -> None:
    table = torch.full((9,), 3)
    scripted = torch.jit.script(_Adds(table))
    for _ in range(cuda_device.CLOSELY_AT_FIRST + 1):
        assert check(stand_in, scripted, feeds()).verdict is Verdict.EQUIVALENT
    assert stand_in._op_by_op


class _Adds(torch.nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Buffer(table[0].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


def test_a_divergence_is_explained(stand_in: StandIn) -> None:
    settle(stand_in)

    def bakes(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            seen[:] = x.tolist()
        return torch.tensor(seen) + 1

    seen: list[int] = []
    outcome = check(stand_in, bakes, feeds())
    assert outcome.label == "divergence:stale_host_value"
    assert explain(stand_in, bakes, feeds(), None, outcome).verdict is Verdict.DIVERGENCE


def test_an_error_of_the_host_in_eager_code_names_its_op(stand_in: StandIn) -> None:
    """However it is asked for: the op is part of the fault's name."""

    def ill_shaped(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
        return indptr + indptr[:-1].repeat(7)

    target = get_target("fold_indptr")
    case = next(case for case in drawn(target.strategy(), 20, 1) if len(case.steps[0]["lengths"]) > 1)
    subject = Subject(target, "user:x:ill_shaped", ill_shaped)
    first = judge(stand_in, subject, case)
    assert (first.label, first.blame.op) == ("eager_error:RuntimeError", "add.Tensor")
    assert judge(stand_in, subject, case, first.label).blame == first.blame


# -- a capture, call by call -------------------------------------------------------------------------------------------


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers become host tensors without dimensions."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.dim() > 0 or tensor._is_view()))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def looked_at(body: Callable[[], Any]) -> tuple[CallWatch, Watch]:
    """What the calls of a body show, and what its ops show."""
    calls, ops = CallWatch(poison.CAPTURE), Watch(poison.CAPTURE, None)
    with calls:
        body()
    with ops:
        body()
    return calls, ops


@torch.library.custom_op("capfuzz_test::looks_up", mutates_args=())
def looks_up(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table[x.long()]


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x + TABLE

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * TABLE


TABLE = torch.full((4,), 7.0)
X = torch.arange(4.0)
LEAF = torch.zeros(4, requires_grad=True)
LEAF.grad = torch.zeros(4)
LOSS = (LEAF * torch.full((4,), 3.0)).sum()
BODIES: dict[str, Callable[[], Any]] = {
    "an argument": lambda: TABLE + 1,
    "in a list": lambda: torch.stack([X, TABLE]),
    "nested": lambda: torch.stack(torch.meshgrid([X, TABLE], indexing="ij")),
    "by keyword": lambda: torch.add(X, other=TABLE),
    "as the output": lambda: torch.add(X, 1, out=TABLE),
    "in place": lambda: TABLE.fill_(7),
    "through a view": lambda: TABLE[1:].view(3, 1).T + 1,
    "through an attribute": lambda: TABLE[None].T.data.mT + 1,
    "an item set": lambda: TABLE.__setitem__(0, 7),
    "many at once": lambda: torch._foreach_add_([TABLE], 0),
    "a function of Python": lambda: F.pad(TABLE, (1, 0)),
    "einsum": lambda: torch.einsum("i,i->", X, TABLE),
    "an op with a Python body": lambda: torch.ops.capfuzz_test.looks_up(X, TABLE),
    "the same by its definition": lambda: looks_up(X, TABLE),
    "an autograd function": lambda: Doubles.apply(X),  # type: ignore[no-untyped-call]
    "backward": lambda: (LEAF * TABLE).sum().backward(),
    "a gradient": lambda: torch.autograd.grad((LEAF * TABLE).sum(), LEAF),
    "a gradient of what came before": lambda: torch.autograd.grad(LOSS, LEAF, retain_graph=True),
    "the gradient that a leaf has": lambda: operator.add(LEAF.grad, 1),
    "checkpoint": lambda: torch.utils.checkpoint.checkpoint(lambda x: x + TABLE, LEAF, use_reentrant=False),
    "an aten op": lambda: torch.ops.aten.add.Tensor(X, TABLE),
    "only made": lambda: (torch.zeros(4) + 1)[1:].mul_(2),
    "made and set": lambda: torch.zeros(4).__setitem__(slice(1, 2), 5),
    "several made": lambda: [part + 1 for part in torch.zeros(4).split(2)],
    "made from numbers": lambda: torch.arange(2).cumsum(0) + torch.full((2,), 5),
}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", BODIES)
def test_the_calls_show_the_outside_memory_that_the_ops_show(name: str) -> None:
    calls, ops = looked_at(BODIES[name])
    assert calls.outside.keys() == ops.outside.keys()
    for key, used in ops.outside.items():
        assert calls.outside[key].location == used.location
        assert calls.outside[key].storage.cdata == used.storage.cdata


@pytest.mark.usefixtures("on_gpu")
def test_a_call_whose_tensors_hide_their_memory_is_left_to_the_look_at_ops() -> None:
    with CallWatch(poison.CAPTURE) as calls:
        assert torch.vmap(lambda x: x + TABLE)(torch.zeros(2, 4)).tolist() == [[7.0] * 4] * 2
    assert calls.is_blind
    ops_see, _ = looked_at(lambda: X + TABLE)
    assert not ops_see.is_blind


@pytest.mark.usefixtures("on_gpu")
def test_what_launches_nothing_uses_nothing() -> None:
    def asks() -> None:
        assert TABLE.shape == (4,) and TABLE.numel() == 4 and len(TABLE) == 4 and TABLE.is_contiguous()
        assert TABLE.dtype is torch.float32 and TABLE.stride() == (1,) and TABLE.data_ptr() and not TABLE.requires_grad
        assert TABLE.contiguous() is TABLE and TABLE.to(torch.float32) is TABLE and TABLE.float() is TABLE

    calls, ops = looked_at(asks)
    assert not calls.outside
    assert not ops.outside


@pytest.mark.usefixtures("on_gpu")
def test_a_buffer_that_died_is_known_by_its_storage() -> None:
    table = torch.full((3,), 2.0)
    with CallWatch(poison.CAPTURE) as calls:
        table + 1
    (used,) = calls.outside.values()
    assert (used.what, used.op) == ("float32[3]", "add")
    assert not used.storage.expired()
    del table
    gc.collect()
    assert used.storage.expired()


EMPTY: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(4, dtype=torch.int64),
    "empty_like": lambda: torch.empty_like(torch.zeros(4, dtype=torch.int64)),
    "empty_strided": lambda: torch.empty_strided((4,), (1,), dtype=torch.int64),
    "new_empty": lambda: torch.zeros(1, dtype=torch.int64).new_empty(4),
    "new": lambda: torch.zeros(1, dtype=torch.int64).new(4),
    "an aten op": lambda: torch.ops.aten.empty.memory_format([4], dtype=torch.int64),
}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("side", [poison.EAGER, poison.CAPTURE])
@pytest.mark.parametrize("name", EMPTY)
def test_memory_that_is_handed_out_unwritten_is_poisoned(name: str, side: int) -> None:
    with CallWatch(side) as calls:
        fresh = EMPTY[name]()
    assert fresh.tolist() == [poison.value(torch.int64, side)] * 4
    assert calls.saw_empty
    assert not calls.outside


@pytest.mark.usefixtures("on_gpu")
def test_what_is_written_is_not_poisoned() -> None:
    with CallWatch(poison.CAPTURE) as calls:
        assert torch.zeros(1).new([1.0, 2.0]).tolist() == [1.0, 2.0]
        assert torch.zeros(2).tolist() == [0.0, 0.0]
    assert not calls.saw_empty


@pytest.mark.skipif(torch.__version__.startswith("2.11"), reason="on torch 2.11 the counts are others (seen on an H200)")
def test_a_compiled_function_is_compiled_once_for_warm_up_and_capture() -> None:
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    function = torch.compile(lambda x: torch.empty_like(x).fill_(2) + x, backend=backend)
    for side in (poison.EAGER, poison.CAPTURE, poison.CAPTURE):
        with CallWatch(side):
            assert function(X).tolist() == [2.0, 3.0, 4.0, 5.0]
    assert compiled
    again = len(compiled)
    with CallWatch(poison.CAPTURE):
        function(X)
    assert len(compiled) == again


# -- buffers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", Space)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_, np.float32])
def test_a_buffer_is_written_whole_and_read_whole(stand_in: StandIn, space: Space, layout: str, dtype: Any) -> None:
    first, second = np.array([[1, 0, 1], [0, 1, 1]], dtype), np.array([[0, 1, 1], [1, 0, 0]], dtype)
    buffer = stand_in.buffer(Argument(first, LAYOUTS[layout], space))
    assert np.array_equal(buffer.tensor.numpy(), first)
    before = buffer.snapshot()
    assert buffer.guard_intact(before)
    buffer.base[-1] = 0
    buffer.base[-2] = 0
    assert not buffer.guard_intact(buffer.snapshot())
    buffer.write(second)
    after = buffer.snapshot()
    assert np.array_equal(buffer.tensor.numpy(), second)
    assert buffer.guard_intact(after)
    buffer.write(first)
    assert np.array_equal(buffer.snapshot(), before)


def test_everything_is_read_in_its_order(stand_in: StandIn) -> None:
    buffers = [stand_in.buffer(Argument(np.arange(n), space=space)) for n, space in ((3, Space.DEVICE), (2, Space.HOST))]
    tensors = [torch.arange(6).view(2, 3).T, torch.tensor(5.0)]
    arrays = stand_in.read_all(tensors, buffers)
    assert [array.tolist()[: len(array.tolist())] for array in arrays[:1]] == [[[0, 3], [1, 4], [2, 5]]]
    assert arrays[1].shape == () and arrays[1] == 5
    assert [array[:2].tolist() for array in arrays[2:]] == [[0, 1], [0, 1]]
    assert outputs_of(stand_in, tensors).keys() == {"output[0]", "output[1]"}


def test_a_case_that_must_begin_again_is_no_fault_of_the_implementation() -> None:
    assert not issubclass(LookAgainError, Exception)
