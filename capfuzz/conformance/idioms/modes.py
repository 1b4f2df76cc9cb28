"""Modes and wrappers around the body: gradients, autocast, custom ops, modules, defaults, determinism, capture modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom, program

# Gradient modes


@idiom
def inference_mode(s: Buffers) -> list[torch.Tensor]:
    with torch.inference_mode():
        y = s.x + 1
        y.mul_(2)
        return [y]


@idiom
def inference_mode_inplace(s: Buffers) -> list[torch.Tensor]:
    with torch.inference_mode():
        s.x.add_(1)
    return [s.x]


@idiom
def inference_mode_view(s: Buffers) -> list[torch.Tensor]:
    with torch.inference_mode():
        rows = s.out.view(8, 8)[1:3]
        rows.add_(1)
    return [s.out]


@idiom
def inference_tensor_written_outside(s: Buffers) -> list[torch.Tensor]:
    with torch.inference_mode():
        y = s.x + 1
    y.add_(1)
    return [y]


@idiom
def inference_tensor_in_autograd(s: Buffers) -> list[torch.Tensor]:
    with torch.inference_mode():
        y = s.f * 2
    w = s.f.detach().clone().requires_grad_()
    (w * y).sum().backward()
    return [y]


@idiom
def no_grad(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    with torch.no_grad():
        w.mul_(2)
        y = w + 1
    return [w.detach(), y]


@idiom
def leaf_written_with_grad(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    w.add_(1)
    return [w]


@idiom
def enable_grad_inside_no_grad(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    with torch.no_grad():
        y = w * 2
        with torch.enable_grad():
            z = (w * w).sum()
        (grad,) = torch.autograd.grad(z, w)
    return [y, grad]


@idiom
def output_with_grad(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    return [w.square().sum(-1)]


@idiom
def detect_anomaly(s: Buffers) -> list[torch.Tensor]:
    """Every gradient is looked at for NaN, by the host."""
    w = s.f.detach().clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        w.square().sum().backward()
    assert w.grad is not None
    return [w.grad]


@idiom
def save_on_cpu(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = w.square().sum()
    y.backward()
    assert w.grad is not None
    return [w.grad]


@idiom
def checkpoint_with_rng(s: Buffers) -> list[torch.Tensor]:
    """The generator's state is saved before, and put back for the second forward pass."""
    w = s.f.detach().clone().requires_grad_()
    checkpoint(lambda t: F.dropout(t, 0.5).square().sum(), w, use_reentrant=False).backward()
    assert w.grad is not None
    return [w.grad]


@idiom
def checkpoint_without_rng(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    checkpoint(lambda t: t.sin().square().sum(), w, use_reentrant=False, preserve_rng_state=False).backward()
    assert w.grad is not None
    return [w.grad]


class _Double(torch.autograd.Function):
    """y = 2x, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 2 + x * 0


@idiom
def autograd_function(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    y = _Double.apply(w)  # type: ignore[no-untyped-call]
    (grad,) = torch.autograd.grad(y.sum(), w)
    return [y.detach(), grad]


@program
def grad_of_static_leaf(s: Buffers) -> list[Any]:
    """A training step as one graph: gradients accumulate over replays into memory that capture made."""
    w = torch.ones(4, device=s.dev, requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (w * 3).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    w.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        (w * 3).sum().backward()
    held: list[Any] = []
    for _ in range(2):
        graph.replay()
        held.append(None if w.grad is None else w.grad.tolist())
    return held


@program
def grad_kept_over_capture(s: Buffers) -> list[Any]:
    """The gradient existed before the capture: the graph accumulates into it."""
    w = torch.ones(4, device=s.dev, requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (w * 3).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        (w * 3).sum().backward()
    held: list[Any] = []
    for _ in range(2):
        graph.replay()
        held.append(None if w.grad is None else w.grad.tolist())
    return held


# Autocast


@idiom
def autocast_half(s: Buffers) -> list[torch.Tensor]:
    with torch.autocast("cuda", dtype=torch.float16):
        y = s.f @ s.f.t()
        z = y.softmax(-1)
    return [y.float(), z.float()]


@idiom
def autocast_bf16_linear(s: Buffers) -> list[torch.Tensor]:
    """The weight's cast copy is cached until autocast ends."""
    w = s.f.detach().clone().requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = F.linear(s.f, w) + F.linear(s.f * 2, w)
    return [y.float()]


@program
def autocast_dtypes(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.autocast("cuda", dtype=torch.float16):
        product = s.f @ s.f.t()
        total = product.sum()
        left = s.f + s.f
        with torch.autocast("cuda", enabled=False):
            plain = s.f @ s.f.t()
    return [str(t.dtype) for t in (product, total, left, plain)]


# Custom ops and modes of the user


@torch.library.custom_op("capfuzz_conformance::scale_by", mutates_args=())
def _scale_by(x: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    return x * lens + 1


@torch.library.custom_op("capfuzz_conformance::scale_by_item", mutates_args=())
def _scale_by_item(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x * int(n)


@torch.library.custom_op("capfuzz_conformance::scale_by_host", mutates_args=())
def _scale_by_host(x: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    return x * int(lens[3])


@torch.library.custom_op("capfuzz_conformance::store_first", mutates_args={"out"})
def _store_first(out: torch.Tensor) -> None:
    out[0] = 0


@torch.library.custom_op("capfuzz_conformance::add_to", mutates_args={"out"})
def _add_to(out: torch.Tensor, x: torch.Tensor) -> None:
    out[: x.numel()].add_(x)


@idiom
def custom_op(s: Buffers) -> list[torch.Tensor]:
    return [_scale_by(s.x, s.lens)]


@idiom
def custom_op_inplace(s: Buffers) -> list[torch.Tensor]:
    _add_to(s.out, s.x)
    return [s.out]


@idiom
def custom_op_item(s: Buffers) -> list[torch.Tensor]:
    return [_scale_by_item(s.x, s.n)]


@idiom
def custom_op_host_scalar(s: Buffers) -> list[torch.Tensor]:
    return [_scale_by_host(s.x, s.lens_cpu)]


@idiom
def custom_op_stores_scalar(s: Buffers) -> list[torch.Tensor]:
    _store_first(s.out)
    return [s.out]


class _Counting(TorchDispatchMode):
    """Counts ops, as profilers and FLOP counters do."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        return func(*args, **(kwargs or {}))


@idiom
def user_dispatch_mode(s: Buffers) -> list[torch.Tensor]:
    with _Counting() as mode:
        y = (s.x + 1).cumsum(0)
    return [y + mode.ops]


class _DoublingAdds(TorchFunctionMode):
    """Changes what one function does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.add else result


@idiom
def user_function_mode(s: Buffers) -> list[torch.Tensor]:
    with _DoublingAdds():
        return [torch.add(s.x, s.lens)]


class _Tagged(torch.Tensor):
    """A tensor subclass that changes nothing."""


@idiom
def tensor_subclass(s: Buffers) -> list[torch.Tensor]:
    y = s.x.as_subclass(_Tagged) + 1
    assert isinstance(y, _Tagged)
    return [y.as_subclass(torch.Tensor)]


# Function transforms


@idiom
def vmap(s: Buffers) -> list[torch.Tensor]:
    return [torch.vmap(lambda row, n: row * n + row.sum())(s.f, s.lens)]


@idiom
def vmap_item(s: Buffers) -> list[torch.Tensor]:
    return [torch.vmap(lambda row: row * float(row.sum()))(s.f)]


@idiom
def func_grad(s: Buffers) -> list[torch.Tensor]:
    return [torch.func.grad(lambda v: (v * v).sum())(s.f)]


@idiom
def func_jacrev(s: Buffers) -> list[torch.Tensor]:
    return [torch.func.jacrev(lambda v: v.square())(s.f[0])]


@idiom
def functionalize(s: Buffers) -> list[torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[1:].add_(1)
        return y

    return [torch.func.functionalize(step)(s.x)]


# Modules


@idiom
def layer_norm_module(s: Buffers) -> list[torch.Tensor]:
    """Its weights are constants that the device fills."""
    return [torch.nn.LayerNorm(8, device=s.dev)(s.f)]


@idiom
def linear_module(s: Buffers) -> list[torch.Tensor]:
    """Its weights are drawn on the device."""
    return [torch.nn.Linear(8, 4, device=s.dev)(s.f)]


@idiom
def module_moved(s: Buffers) -> list[torch.Tensor]:
    return [torch.nn.LayerNorm(8).to(s.dev)(s.f)]


@idiom
def module_functional_call(s: Buffers) -> list[torch.Tensor]:
    layer = torch.nn.Linear(8, 6, device="meta")
    return [torch.func.functional_call(layer, {"weight": s.f, "bias": s.f[:, 0]}, (s.f,))]


@program
def module_weights_updated(s: Buffers) -> list[Any]:
    """Weights loaded in place are seen by the next replay; a new parameter object is not."""
    layer = torch.nn.Linear(8, 1, bias=False, device=s.dev).requires_grad_(False)
    x = torch.ones(1, 8, device=s.dev)
    layer.weight.fill_(1)
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    held = []
    layer.load_state_dict({"weight": torch.full((1, 8), 2.0)})
    graph.replay()
    held.append(y.item())
    old = layer.weight
    layer.weight = torch.nn.Parameter(torch.full((1, 8), 3.0, device=s.dev), requires_grad=False)
    graph.replay()
    held.append(y.item())
    return [held, old.tolist()]


@program
def make_graphed_callables(s: Buffers) -> list[Any]:
    """A module's forward and backward pass as graphs, against eager."""
    torch.manual_seed(3)
    eager = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to(s.dev)
    twin = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to(s.dev)
    twin.load_state_dict(eager.state_dict())
    graphed: Any = torch.cuda.make_graphed_callables(twin, (torch.zeros(6, 8, device=s.dev),))
    same = []
    for scale in (1.0, 2.0):
        outputs = []
        for module in (eager, graphed):
            module.zero_grad()
            y = module(s.f * scale)
            y.square().sum().backward()
            outputs.append([y.detach().clone(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
        same.append([len(outputs[1]), all(torch.allclose(a, b) for a, b in zip(*outputs, strict=True))])
    return same


@program
def make_graphed_function(s: Buffers) -> list[Any]:
    """A plain function; the output of the first call after the second."""
    graphed: Any = torch.cuda.make_graphed_callables(lambda t: t * 2, (torch.zeros(4, device=s.dev),))
    first = graphed(torch.ones(4, device=s.dev))
    second = graphed(torch.full((4,), 5.0, device=s.dev))
    return [first.tolist(), second.tolist()]


# Defaults and determinism


@idiom
def default_device_set(s: Buffers) -> list[torch.Tensor]:
    torch.set_default_device("cuda")
    try:
        return [torch.arange(3), torch.ones(2)]
    finally:
        torch.set_default_device(None)


@idiom
def default_device_set_list(s: Buffers) -> list[torch.Tensor]:
    torch.set_default_device("cuda")
    try:
        return [torch.tensor([1, 2, 3])]
    finally:
        torch.set_default_device(None)


@idiom
def default_dtype_set(s: Buffers) -> list[torch.Tensor]:
    torch.set_default_dtype(torch.float64)
    try:
        return [torch.ones(3, device=s.dev), s.x / 2]
    finally:
        torch.set_default_dtype(torch.float32)


@idiom
def deterministic_index_put_float(s: Buffers) -> list[torch.Tensor]:
    torch.use_deterministic_algorithms(True)
    try:
        return [s.f.index_put((s.idx % 2,), s.f, accumulate=True)]
    finally:
        torch.use_deterministic_algorithms(False)


@idiom
def deterministic_cumsum_float(s: Buffers) -> list[torch.Tensor]:
    torch.use_deterministic_algorithms(True)
    try:
        return [torch.cumsum(s.f, 0)]
    finally:
        torch.use_deterministic_algorithms(False)


@idiom
def deterministic_refused(s: Buffers) -> list[torch.Tensor]:
    torch.use_deterministic_algorithms(True)
    try:
        return [torch.histc(s.f, bins=4, min=-3, max=3)]
    finally:
        torch.use_deterministic_algorithms(False)


@idiom
def deterministic_empty(s: Buffers) -> list[torch.Tensor]:
    """Under the flag unwritten memory is filled."""
    torch.use_deterministic_algorithms(True)
    try:
        return [torch.empty(4, device=s.dev), torch.empty(4, device=s.dev, dtype=torch.int32)]
    finally:
        torch.use_deterministic_algorithms(False)


@idiom
def device_context(s: Buffers) -> list[torch.Tensor]:
    with torch.cuda.device(0):
        return [s.x + 1]


@idiom
def device_of_tensor(s: Buffers) -> list[torch.Tensor]:
    with torch.cuda.device_of(s.x):
        torch.cuda.set_device(s.x.device)
        return [s.x + torch.cuda.current_device()]


# Profiling marks and other surfaces


@idiom
def nvtx_range(s: Buffers) -> list[torch.Tensor]:
    with torch.cuda.nvtx.range("step"):
        return [s.x + 1]


@idiom
def record_function(s: Buffers) -> list[torch.Tensor]:
    with torch.profiler.record_function("step"):
        return [s.x + 1]


@idiom
def accelerator_facts(s: Buffers) -> list[torch.Tensor]:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_stream().stream_id == torch.cuda.current_stream().stream_id
    return [s.x + torch.accelerator.current_device_index()]


@idiom
def accelerator_synchronize(s: Buffers) -> list[torch.Tensor]:
    torch.accelerator.synchronize()
    return [s.x + 1]


@idiom
def sync_debug_mode(s: Buffers) -> list[torch.Tensor]:
    """PyTorch's own watch on synchronising calls."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        return [s.x + 1, s.x[s.mask]]
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Capture error modes


@program
def relaxed_unforked_allocation(s: Buffers) -> list[Any]:
    """In relaxed mode a stream outside the capture may call `cudaMalloc`; in the others it may not."""
    said: list[Any] = []
    for mode in ("relaxed", "thread_local", "global"):
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode=mode):
                y = s.x + 1
                with torch.cuda.stream(side):
                    z = torch.ones(40 << 20, dtype=torch.uint8, device=s.dev)
            graph.replay()
            torch.cuda.synchronize()
            said.append([mode, y.tolist(), z[:2].tolist()])
            del z
        except RuntimeError as error:
            cause = error.__context__ or error
            said.append([mode, type(cause).__name__, str(cause).splitlines()[0]])
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()
    return said


@program
def relaxed_item(s: Buffers) -> list[Any]:
    """No mode lets the host read what a capturing stream has not computed."""
    said: list[Any] = []
    for mode in ("relaxed", "thread_local"):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode=mode):
                s.n.item()
            said.append([mode, "captured"])
        except RuntimeError as error:
            cause = error.__context__ or error
            said.append([mode, type(cause).__name__, str(cause).splitlines()[0]])
        torch.cuda.set_stream(torch.cuda.default_stream())
    return said


@program
def relaxed_other_stream_waited_for(s: Buffers) -> list[Any]:
    """Waiting for a stream that takes no part, in each mode."""
    said: list[Any] = []
    waits: list[tuple[str, Callable[[torch.cuda.Stream], Any]]] = [
        ("synchronize", lambda stream: stream.synchronize()),
        ("query", lambda stream: stream.query()),
        ("event", lambda stream: stream.record_event().synchronize()),
    ]
    for mode in ("relaxed", "thread_local", "global"):
        for name, wait in waits:
            side = torch.cuda.Stream()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode=mode):
                    y = s.x + 1
                    wait(side)
                graph.replay()
                said.append([mode, name, y.tolist()])
            except RuntimeError as error:
                cause = error.__context__ or error
                said.append([mode, name, type(cause).__name__, str(cause).splitlines()[0]])
            torch.cuda.set_stream(torch.cuda.default_stream())
    return said


@program
def capture_mode_unknown(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="strict"):
        y = s.x + 1
    return [y.numel()]
