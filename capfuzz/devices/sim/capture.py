"""Capture and replay on the simulated device.

During capture an op is run once, so that later ops see shapes and the host sees nothing else; when capture ends, every
buffer that existed before is put back as it was and everything that the graph owns is poisoned. So capture executes nothing
that anyone can see. Each op leaves a node that writes the same memory again: an in-place op as it is, a functional op through
its `out=` overload or by a copy into the captured output. Replay runs the nodes with no mode active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices import poison
from capfuzz.devices.errors import CudaError
from capfuzz.devices.sim import asserts, memory
from capfuzz.devices.sim.generators import Draws, SimGenerator
from capfuzz.devices.sim.ops import Op
from capfuzz.devices.sim.runtime import Runtime
from capfuzz.devices.sim.tensor import SimTensor, is_sim, replaced, storage_id, tag_all
from capfuzz.devices.trace import Location, here
from capfuzz.devices.tracer import Tracer

if TYPE_CHECKING:
    from capfuzz.devices.sim.streams import StreamState

Step = Callable[[], Any]
Recipe = Step | tuple["Runtime", "Op | RecordedCall", tuple[Any, ...], dict[str, Any]]


class Node:
    """One recorded op: `step()` runs it again on the captured memory.

    A kernel is kept as a `recipe` (what `_step_of` takes) until `ready` is called: a capture that nobody replays is spared it.
    """

    __slots__ = ("kind", "location", "op", "recipe", "step", "written")

    def __init__(
        self,
        op: str,
        kind: str,
        recipe: Recipe,
        written: list[torch.Tensor],
        location: Location | None,
    ) -> None:
        self.op = op
        self.kind = kind
        self.recipe = recipe
        self.written = written
        self.location = location

    def ready(self) -> None:
        """Makes `step`; what the node holds does not change any more."""
        recipe = self.recipe
        self.step: Step = _step_of(*recipe, self.written) if isinstance(recipe, tuple) else recipe

    def replace(self, new: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Puts `new(tensor)` in the place of every tensor that the node holds."""
        self.written = [new(tensor) for tensor in self.written]
        self.recipe = replaced(self.recipe, new)


class RecordedCall:
    """What a node makes again that stands for a whole call: see `recorded_calls`."""

    __slots__ = ("call", "name")

    def __init__(self, call: Callable[..., Any], name: str) -> None:
        self.call = call
        self.name = name
        """The first op that the call was made of: the one that uses its arguments."""


class TracedNodes(list[Node]):
    """The nodes of a capture that is traced: the tracer is told of each as it comes, whoever makes it."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def append(self, node: Node) -> None:
        super().append(node)
        recipe = node.recipe
        if isinstance(recipe, tuple):
            _, op, args, kwargs = recipe
            assert isinstance(op, Op)  # what is traced is recorded op by op
            self._tracer.add_call(node.op, node.kind, op.func, args, kwargs, node.written, node.location)
        elif node.location is not None:  # else the simulated device's own, which hardware has no node for
            read = [held for held in memory.tensors_of([node]) if not any(held is written for written in node.written)]
            kind = "kernel" if node.kind == "host" else node.kind
            self._tracer.add(node.op, kind, node.written, node.location, read)


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


@contextmanager
def behind_autograd(written: list[torch.Tensor]) -> Iterator[None]:
    """Writes inside do not count for autograd: what it saved stays valid, as on hardware, where a replay is unseen by it."""
    versions = [tensor._version for tensor in written]
    yield
    torch._C._autograd._unsafe_set_version_counter(tuple(written), tuple(versions))


class Capture:
    """One capture under way: the streams that take part, the nodes so far, the memory that must be put back."""

    by_call = False
    """Whether calls may be recorded whole: see `recorded_calls`."""

    def __init__(self, runtime: Runtime, mode: str, free_blocks: list[torch.Tensor]) -> None:
        self.runtime = runtime
        self.origin = origin = runtime.stream
        self.mode = mode
        self.outer = runtime.capture
        self.active = True
        self.in_autograd = False
        self.error: CudaError | None = None
        self.nodes: list[Node] = []
        self.members: dict[int, StreamState] = {origin.index: origin}
        # stream -> the last work of every other stream that it has waited for
        self.joined: dict[int, dict[int, int]] = {}
        self.owned: list[torch.Tensor] = []
        # random state: which generators may draw, and what was drawn from each
        self.registered: set[SimGenerator] = set()
        self.draws: dict[int, Draws] = {}
        # pinned memory made inside, which lives as long as the graph
        self.host_memory: list[torch.Tensor] = []
        # memory that may be handed out again: what others in the pool have dropped; and the owned tensors whose address was
        # asked for, because nobody can tell of any other whether it was
        self.free_blocks = free_blocks
        self.addressed: list[torch.Tensor] = []
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
        if len(self.members) == 1:
            return False
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

    def address_asked(self, tensor: torch.Tensor) -> None:
        storage = storage_id(tensor)
        self.addressed += [owned for owned in self.owned if storage_id(owned) == storage][-1:]

    def _reuse(self, made: list[torch.Tensor]) -> None:
        """Lays new results where memory was dropped, as the pool's allocator does."""
        holders = memory.Holders(self.nodes, self.owned)
        for tensor in list(self.addressed):
            if holders.alone(storage_id(tensor), extra=3):
                self.addressed.remove(tensor)
                self.free_blocks.append(tensor)
        for tensor in made:
            memory.move_into(tensor, self.free_blocks)

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
        if self._saved:
            self._restore()
        for tensor in self.owned:
            if tensor.requires_grad:
                self.in_autograd = True
                break
        if self.in_autograd:
            with behind_autograd(self.owned):
                self._poison()
        else:
            self._poison()
        self._saved.clear()
        self.addressed.clear()
        self.free_blocks.clear()

    def _poison(self) -> None:
        for tensor in self.owned:
            value = poison.CAPTURE_VALUES.get(tensor.dtype)
            if value is not None:
                tensor.fill_(value)

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
        try:
            if op.seeded:
                result = runtime.execute(op, args, kwargs)
            else:
                result = op.call(*args, **kwargs) if kwargs else op.call(*args)
        except (IndexError, RuntimeError) as error:  # nothing runs in a capture, and so nothing asserts
            result = asserts.unknown_result(op, args, kwargs, error)
        if type(result) is torch.Tensor:
            result.__class__ = SimTensor
        else:
            tag_all(result)
        runtime.stream.work += 1
        if op.is_empty and poison.torch_fills_memory():
            self.own(result)
            self.add(
                Node("fill_", "kernel", partial(torch.Tensor.copy_, result, result.clone()), [result], here(runtime.frame))
            )
            return result
        if op.is_empty:
            if self.free_blocks or self.addressed:
                self._reuse([result])
            self.own(result)
            poison.fill(result, poison.CAPTURE)
            self.add(Node(op.name, "alloc", _nothing, [result], here(runtime.frame)))
            return result
        if not written:
            written = [result] if type(result) is SimTensor else _tensors(result)
            if self.free_blocks or self.addressed:
                self._reuse(written)
            self.owned += written
            if op.reads_shape_alone:  # what it was made like may go
                args = (result, *args[1:])
        recipe = (runtime, op, args, kwargs)
        self.nodes.append(Node(op.name, "kernel", recipe, written, here(runtime.call[2])))
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
        """`tensor` is about to change its own shape (`squeeze_`) or memory (`set_`): nodes keep what they were given."""
        kept = tag_all(tensor.detach())

        def new(held: torch.Tensor) -> torch.Tensor:
            return kept if held is tensor else held

        for node in self.nodes:
            node.replace(new)
        self.owned[:] = map(new, self.owned)
        self.addressed[:] = map(new, self.addressed)


def _step_of(
    runtime: Runtime, op: Op | RecordedCall, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
) -> Step:
    """What runs an op again on the memory that it wrote."""
    if isinstance(op, RecordedCall):
        return partial(_copy_into, written, partial(op.call, *args, **kwargs))
    if op.mutated:
        return partial(runtime.execute, op, args, kwargs) if op.seeded else partial(op.call, *args, **kwargs)
    variant = op.out_variant
    if variant is not None and len(written) == len(variant.outs):
        kept = {name: value for name, value in kwargs.items() if name in variant.keeps}
        return partial(variant.func, *args, **kept, **dict(zip(variant.outs, written, strict=True)))
    return partial(_copy_into, written, partial(runtime.execute, op, args, kwargs))


def _nothing() -> None:
    return None
