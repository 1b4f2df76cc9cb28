"""Capture and replay on the simulated device.

During capture an op is run once, so that later ops see shapes and the host sees nothing else; when capture ends, every
buffer that existed before is put back as it was and everything that the graph owns is poisoned. So capture executes nothing
that anyone can see. Each op leaves a node that writes the same memory again: an in-place op as it is, a functional op through
its `out=` overload or by a copy into the captured output. Replay runs the nodes with no mode active.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices import poison
from capfuzz.devices.errors import CudaError, Rule, not_permitted
from capfuzz.devices.sim.generators import Draws, SimGenerator, refused_in_capture
from capfuzz.devices.sim.ops import Op
from capfuzz.devices.sim.runtime import Runtime, active, current
from capfuzz.devices.sim.tensor import SimTensor, is_sim, storage_id, tag_all
from capfuzz.devices.trace import Location, here
from capfuzz.devices.tracer import Tracer

if TYPE_CHECKING:
    from capfuzz.devices.sim.streams import StreamState

Step = Callable[[], Any]


class Node:
    """One recorded op: `step()` runs it again on the captured memory."""

    __slots__ = ("baked", "kind", "location", "op", "step", "written")

    def __init__(
        self, op: str, kind: str, step: Step, written: list[torch.Tensor], location: Location | None, baked: bool = False
    ) -> None:
        self.op = op
        self.kind = kind
        self.step = step
        self.written = written
        self.location = location
        self.baked = baked


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for t in result if isinstance(t, torch.Tensor)] if isinstance(result, (list, tuple)) else []


def _copy_into(outs: list[torch.Tensor], run: Step) -> None:
    for out, new in zip(outs, _tensors(run()), strict=True):
        out.copy_(new)


def _bake(value: Any) -> Any:
    """A host tensor among an op's operands is read when the kernel is launched: the graph keeps the value of that moment."""
    if isinstance(value, torch.Tensor) and not is_sim(value):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_bake(v) for v in value)
    return value


def _has_host_tensor(values: Any) -> bool:
    return any(
        (isinstance(v, torch.Tensor) and not is_sim(v)) or (isinstance(v, (list, tuple)) and _has_host_tensor(v))
        for v in values
    )


class Capture:
    """One capture under way: the streams that take part, the nodes so far, the memory that must be put back."""

    def __init__(self, runtime: Runtime, mode: str) -> None:
        self.runtime = runtime
        self.origin = origin = runtime.stream
        self.mode = mode
        self.outer = runtime.capture
        self.active = True
        self.error: CudaError | None = None
        self.nodes: list[Node] = []
        self.members: dict[int, StreamState] = {origin.index: origin}
        # stream -> the last work of every other stream that it has waited for
        self.joined: dict[int, dict[int, int]] = {}
        self.owned: list[torch.Tensor] = []
        # random state: which generators may draw, and what was drawn from each
        self.registered: set[SimGenerator] = set()
        self.draws: dict[int, Draws] = {}
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        origin.capture = self
        origin.work = 0

    # -- membership ----------------------------------------------------------------------------------------------------

    def fork(self, stream: StreamState) -> None:
        stream.capture = self
        stream.work = 0
        self.members[stream.index] = stream

    def invalidate(self, error: CudaError) -> CudaError:
        """Marks the capture as failed and returns the error to raise; every later call fails with the masking one."""
        if self.error is None:
            self.error = error
        return error

    def check_valid(self) -> None:
        if self.error is not None:
            raise CudaError("cudaErrorStreamCaptureInvalidated", self.error.rule)

    def unjoined(self) -> bool:
        seen = self.joined.get(self.origin.index, {})
        return any(
            stream.work > 0 and seen.get(index, -1) < stream.work
            for index, stream in self.members.items()
            if stream is not self.origin
        )

    # -- memory --------------------------------------------------------------------------------------------------------

    def own(self, tensor: torch.Tensor) -> None:
        """`tensor` is fresh memory of the graph's pool."""
        self.owned.append(tensor)

    def save(self, tensor: torch.Tensor) -> None:
        """Keeps what an outside buffer holds before the capture's first write to it."""
        key = storage_id(tensor)
        if key in self._saved or any(storage_id(owned) == key for owned in self.owned):
            return
        whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        self._saved[key] = (whole, whole.clone())

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Inside, outside buffers hold what they really hold (capture has run nothing); changes made there persist."""
        ours = [(whole, whole.clone()) for whole, _ in self._saved.values()]
        self._restore()
        try:
            yield
        finally:
            for whole, real in self._saved.values():
                real.copy_(whole)
            for whole, mine in ours:
                whole.copy_(mine)

    def _restore(self) -> None:
        for whole, real in self._saved.values():
            whole.copy_(real)

    def finish(self, succeeded: bool) -> None:
        """Ends the capture: nothing that it ran is to be seen."""
        for draws in self.draws.values():
            draws.finish(succeeded)
        self.active = False
        for stream in self.members.values():
            stream.capture = None
        self._restore()
        for tensor in self.owned:
            value = poison.CAPTURE_VALUES.get(tensor.dtype)
            if value is not None:
                tensor.fill_(value)
        self._saved.clear()

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(
        self, runtime: Runtime, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], with_host: bool | None = None
    ) -> Any:
        """Records a device op as a node and returns its (not yet computed) result.

        `with_host`: whether a host tensor is among the arguments, where the caller has looked.
        """
        if self.error is not None:
            self.check_valid()
        baked = _has_host_tensor(args) if with_host is None else with_host
        if baked:
            args = tuple(_bake(a) for a in args)
        written = op.written(args, kwargs) if op.mutated else []
        for tensor in written:
            self.save(tensor)
        result = runtime.execute(op, args, kwargs) if op.seeded else op.call(*args, **kwargs)
        if type(result) is torch.Tensor:
            result.__class__ = SimTensor
        else:
            tag_all(result)
        runtime.stream.work += 1
        if op.is_empty and not poison.torch_fills_memory():
            self.own(result)
            poison.fill(result, poison.CAPTURE)
            self.add(Node(op.name, "alloc", _nothing, [result], here(runtime.frame)))
            return result
        if written:
            step: Step = partial(runtime.execute, op, args, kwargs) if op.seeded else partial(op.call, *args, **kwargs)
        else:
            written = _tensors(result)
            self.owned += written
            step = self._functional_step(runtime, op, args, kwargs, written)
        self.add(Node(op.name, "kernel", step, written, here(runtime.frame), baked))
        return result

    def add(self, node: Node) -> None:
        self.nodes.append(node)

    def add_work(self, runtime: Runtime, name: str, kind: str = "kernel") -> None:
        """Work that changes no memory."""
        runtime.stream.work += 1
        self.nodes.append(Node(name, kind, _nothing, [], here(runtime.frame)))

    def add_host_node(self, name: str, step: Step) -> None:
        """Something that every replay does besides the device's work."""
        self.nodes.append(Node(name, "host", step, [], None))

    def reshaped_in_place(self, tensor: torch.Tensor) -> None:
        """`tensor` is about to change its own shape (`squeeze_`): nodes keep the shape that they were recorded with."""
        kept = tag_all(tensor.detach())
        for node in self.nodes:
            node.written = [kept if t is tensor else t for t in node.written]
            node.step = _substitute(node.step, tensor, kept)

    @staticmethod
    def _functional_step(
        runtime: Runtime, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], outs: list[torch.Tensor]
    ) -> Step:
        variant = op.out_variant
        if variant is not None and len(outs) == len(variant.outs):
            if not kwargs and variant.only is not None:
                return partial(variant.func, *args, **{variant.only: outs[0]})
            kept = {name: value for name, value in kwargs.items() if name in variant.keeps}
            return partial(variant.func, *args, **kept, **dict(zip(variant.outs, outs, strict=True)))
        return partial(_copy_into, outs, partial(runtime.execute, op, args, kwargs))


def _substitute(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, (list, tuple)):
        return type(value)(_substitute(v, old, new) for v in value)
    if isinstance(value, partial):
        args = [_substitute(a, old, new) for a in value.args]
        kwargs = {k: _substitute(v, old, new) for k, v in value.keywords.items()}
        return partial(value.func, *args, **kwargs)
    return value


def _nothing() -> None:
    return None


class CUDAGraph:
    """`torch.cuda.CUDAGraph` on the simulated device."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._capture: Capture | None = None
        self._nodes: list[Node] | None = None
        self._owned: list[torch.Tensor] = []
        self._pool: tuple[int, int] | None = None
        self._registered: set[SimGenerator] = set()
        self._in_autograd: list[torch.Tensor] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Lets captured ops draw from this generator too; the default one always may."""
        if not isinstance(generator, SimGenerator):
            raise RuntimeError("register_generator_state expected a CUDA generator")
        self._registered.add(generator.root)

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        runtime = current()
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got " + capture_error_mode
            )
        if self._nodes is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if runtime.stream is runtime.default_stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
                "the default stream.)"
            )
        if runtime.capturing is not None:
            raise runtime.capturing.invalidate(not_permitted(Rule.NESTED_CAPTURE))
        self._pool = pool if pool is not None else (0, id(self))
        self._capture = Capture(runtime, capture_error_mode)
        self._capture.registered = self._registered
        runtime.machine.set_capture(self._capture)

    def abort(self, succeeded: bool = False) -> None:
        """Ends the capture without a graph; nothing that it ran is to be seen."""
        capture, self._capture = self._capture, None
        if capture is not None:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._InferenceMode(True):
                capture.finish(succeeded)
            current().machine.set_capture(capture.outer)

    def capture_end(self) -> None:
        if all(node.kind in ("alloc", "host") for node in self.end_capture()):
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device "
                "or stream.",
                stacklevel=2,
            )

    def end_capture(self) -> list[Node]:
        """`capture_end` without the warning about an empty graph; returns the nodes."""
        capture = self._capture
        if capture is None:
            raise CudaError("cudaErrorIllegalState")
        if current().stream is not capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        unjoined = capture.error is None and capture.unjoined()
        self.abort(succeeded=capture.error is None and not unjoined)
        capture.check_valid()
        if unjoined:
            raise CudaError("cudaErrorStreamCaptureUnjoined", Rule.UNJOINED_STREAM)
        if capture.outer is not None:  # two captures may be under way; to make a graph of one is not allowed then
            raise capture.outer.invalidate(not_permitted(Rule.NESTED_CAPTURE))
        self._nodes = capture.nodes
        self._owned = capture.owned
        self._in_autograd = [tensor for tensor in capture.owned if tensor.requires_grad]
        return self._nodes

    def instantiate(self) -> None:
        if self._nodes is None:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if not self._keep_graph:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")

    def raw_cuda_graph(self) -> int:
        if self._nodes is None:
            raise RuntimeError("You cannot access the raw cudaGraph_t instance until capture_end() has been called")
        if not self._keep_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )
        return id(self)

    def raw_cuda_graph_exec(self) -> int:
        self._require_captured("raw_cuda_graph_exec")
        return id(self)

    def replay(self) -> None:
        nodes = self._require_captured("replay")
        if current().capturing is not None:
            raise refused_in_capture("Cannot prepare for replay during capturing stage.")
        if self._in_autograd:
            # A replay writes behind autograd's back: what was saved for backward is still valid.
            versions = [tensor._version for tensor in self._owned]
            self._run(nodes)
            torch._C._autograd._unsafe_set_version_counter(tuple(self._owned), tuple(versions))
        else:
            self._run(nodes)

    @staticmethod
    def _run(nodes: list[Node]) -> None:
        if torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0:
            with torch._C._InferenceMode(True):
                for node in nodes:
                    node.step()
            return
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._InferenceMode(True):
            for node in nodes:
                node.step()

    def replay_traced(self, tracer: Tracer) -> None:
        """Replays and traces every node. Call it with no mode active."""
        with torch._C._InferenceMode(True):
            for node in self._require_captured("replay"):
                node.step()
                tracer.add(node.op, node.kind, node.written, node.location, node.baked)

    def _require_captured(self, what: str) -> list[Node]:
        if self._nodes is None:
            raise RuntimeError(f"Called CUDAGraph::{what} without a preceding successful capture.")
        return self._nodes

    @property
    def nodes(self) -> list[Node]:
        """The recorded nodes, in order."""
        return self._require_captured("nodes")

    def reset(self) -> None:
        """Drops the graph. While something captures in this machine, that is not allowed, and costs the capture."""
        runtime = active()
        if self._nodes is not None and runtime is not None and runtime.capture is not None:
            runtime.capture.invalidate(not_permitted())
        self._nodes = None
        self._owned = []
        self._pool = None

    def __del__(self) -> None:
        self.reset()

    def pool(self) -> tuple[int, int]:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def enable_debug_mode(self) -> None:
        return None

    def debug_dump(self, debug_path: str) -> None:
        with open(debug_path, "w", encoding="utf-8") as file:
            for index, node in enumerate(self._require_captured("debug_dump")):
                file.write(f"{index}\t{node.kind}\t{node.op}\n")
