"""The state of one simulated machine: its streams, the capture under way, the generator, pinned memory, the tracer.

A `Machine` is what all threads share; a `Runtime` is one thread's side of it, as a CUDA context is shared and the current
stream is a thread's own. `current()` is the calling thread's.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices import poison
from capfuzz.devices.errors import CudaError, GeneratorError, Rule, not_permitted
from capfuzz.devices.sim import asserts
from capfuzz.devices.sim.generators import SimGenerator, about_to_draw, new_registry
from capfuzz.devices.sim.ops import Op
from capfuzz.devices.sim.streams import LARGE_ALLOCATION, STREAMS_IN_POOL, Event, StreamState, wait_event
from capfuzz.devices.sim.tensor import PinnedMemory, is_sim, tag_all
from capfuzz.devices.tracer import Tracer

if TYPE_CHECKING:
    from capfuzz.devices.sim.capture import Capture
    from capfuzz.devices.sim.graph import CUDAGraph
    from capfuzz.devices.sim.streams import Stream

_local = threading.local()
_get_state, _set_state = torch.Generator.get_state, torch.Generator.set_state


def active() -> Runtime | None:
    """This thread's side of the simulated machine, or None outside `capfuzz.sim()`."""
    runtime: Runtime | None = getattr(_local, "runtime", None)
    return runtime if runtime is not None and runtime.machine.is_open else None


def current() -> Runtime:
    runtime = active()
    if runtime is None:
        raise RuntimeError("this object belongs to the simulated device, and no `with capfuzz.sim():` is active here")
    return runtime


class Machine:
    """One simulated machine: what its threads share."""

    def __init__(self) -> None:
        self.default_stream = StreamState(0)
        self.streams = [StreamState(index + 1) for index in range(STREAMS_IN_POOL)]
        self._next = 0
        self.generators = new_registry()
        self.generator = self.new_generator()
        torch.Generator.seed(self.generator)
        self.pinned = PinnedMemory()
        self.is_open = True
        self.sync_debug_mode = "default"
        self.capture_stream: Stream | None = None
        self.runtimes: list[Runtime] = []
        self._graphs: weakref.WeakValueDictionary[int, CUDAGraph] = weakref.WeakValueDictionary()
        self._captures = itertools.count()
        # Whether a graph must be sealed before the next replay; how many aliases the nodes of the sealed ones hold of each
        # outside storage.
        self.has_unsealed = False
        self.aliases: Counter[int] = Counter()

    def next_stream(self) -> StreamState:
        state = self.streams[self._next % STREAMS_IN_POOL]
        self._next += 1
        return state

    def new_generator(self) -> SimGenerator:
        """A generator of this machine."""
        generator = SimGenerator()
        generator.machine = self
        self.generators[generator._cdata] = generator
        return generator

    def add_graph(self, graph: CUDAGraph) -> None:
        self._graphs[next(self._captures)] = graph
        self.has_unsealed = True

    def forget_graph(self, graph: CUDAGraph) -> None:
        """A graph is gone: what it owned is outside memory to those that live."""
        if len(self._graphs) > 1:
            for other in self.graphs():
                if other is not graph:
                    other.is_sealed = False
                    self.has_unsealed = True

    def seal_graphs(self) -> None:
        """Before the next replay, or before a tensor that a graph may hold changes. Call it with no mode active."""
        if self.has_unsealed:
            self.has_unsealed = False
            for graph in list(self.graphs()):
                if not graph.is_sealed:
                    graph.seal(self)

    def graphs(self) -> Iterator[CUDAGraph]:
        """The captured graphs that live, in the order of their captures."""
        return self._graphs.values()

    def set_capture(self, capture: Capture | None) -> None:
        """One capture at a time: every thread is told, because in global mode it forbids them to wait for the device."""
        for runtime in self.runtimes:
            runtime.capture = capture


class Runtime:
    """One thread's side of a simulated machine."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine = machine or Machine()
        self.default_stream = self.stream = machine.default_stream
        self.generator = machine.generator
        self.pinned = machine.pinned
        self.capture: Capture | None = machine.runtimes[0].capture if machine.runtimes else None
        machine.runtimes.append(self)
        self.tracer: Tracer | None = None
        self.empty_side = poison.EAGER
        # The Python-level torch call under way: its arguments; whether it names the device, or another one (None: it names
        # none); the frame that made it, where the search for the user's line begins.
        self.call: tuple[tuple[Any, ...], bool | None, FrameType | None] = ((), None, None)
        # Above zero inside a function whose C++ reads values only because it sees the CPU.
        self.checks_of_the_cpu = 0
        # Set by every op that is not a plain kernel or view: see `shortcuts`.
        self.met_a_rule = False

    def install(self) -> Runtime | None:
        """Makes this the thread's machine; returns the one that was."""
        previous = active()
        _local.runtime = self
        return previous

    @staticmethod
    def uninstall(previous: Runtime | None) -> None:
        _local.runtime = previous

    # -- streams -------------------------------------------------------------------------------------------------------

    def wait_event(self, stream: StreamState, event: Event) -> None:
        wait_event(stream, event)

    def refuse_in_capture(self, waits_for: StreamState | None = None) -> None:
        """A call that waits for the device, or for one stream of it (measured on an H200).

        In global mode no thread may, in thread-local mode not the one that captures; relaxed mode forbids to wait for a stream
        that captures. Nobody may wait for all of the device.
        """
        if self.machine.sync_debug_mode != "default":
            self._warn_of_wait()
        capture = self.capture
        if capture is None:
            return
        everything = waits_for is None
        stream = self.stream if waits_for is None else waits_for
        if capture.mode == "relaxed":
            refused = everything or stream.capture is not None
        elif capture.mode == "thread_local":
            refused = everything or capture.runtime is self
        else:
            refused = True
        if refused:
            raise capture.invalidate(not_permitted())

    def wait_for_current_stream(self) -> None:
        """What reading a value does."""
        self.refuse_in_capture(self.stream)

    def refuse_driver_allocation(self) -> None:
        """`cudaMalloc` and `cudaHostAlloc`: in global mode forbidden to every thread, in thread-local mode to the one that
        captures."""
        capture = self.capture
        if capture is None or capture.mode == "relaxed" or (capture.mode == "thread_local" and capture.runtime is not self):
            return
        raise capture.invalidate(not_permitted(Rule.ALLOCATION))

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes fresh host memory pinned. What is large comes from the driver, which a capture in another thread forbids."""
        if self.capture is not None and self.capture.runtime is not self and tensor.nbytes >= LARGE_ALLOCATION:
            self.refuse_driver_allocation()
        if self.capturing is not None:
            self.capturing.host_memory.append(tensor)
        return self.pinned.add(tensor)

    def _warn_of_wait(self) -> None:
        text = "called a synchronizing CUDA operation"
        if self.machine.sync_debug_mode == "error":
            raise RuntimeError(text)
        warnings.warn(text, stacklevel=2)

    @property
    def capturing(self) -> Capture | None:
        """The capture that work on the current stream would be recorded into."""
        return self.stream.capture

    def reshaped_in_place(self, tensor: torch.Tensor) -> None:
        """`tensor` is about to change its own shape or memory: graphs keep those that they were captured with."""
        if self.capture is None and not self.machine.has_unsealed:
            return
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if self.capture is not None:
                self.capture.reshaped_in_place(tensor)
            self.machine.seal_graphs()

    @property
    def names_device(self) -> bool | None:
        return self.call[1]

    @property
    def frame(self) -> FrameType | None:
        return self.call[2]

    # -- launching -----------------------------------------------------------------------------------------------------

    def in_device_call(self) -> bool:
        """Whether a factory without tensor arguments makes a device tensor: its caller named the device, or (a factory
        inside a composite op, which takes its options from a tensor) the Python call has a device tensor among its
        arguments."""
        if self.names_device is not None:
            return self.names_device
        return any_sim(self.call[0])

    def launch(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], host_has_read: bool = False) -> Any:
        """Runs a device op, or records it when the current stream captures. Returns the tagged result.

        `host_has_read`: whether the host knows the values, and refuses by itself those that the kernel would assert about.
        """
        capture = self.stream.capture
        if capture is not None:
            return capture.record(self, op, args, kwargs)
        if self.capture is not None:
            return self._launch_beside(self.capture, op, args, kwargs, host_has_read)
        result = self._run_now(op, args, kwargs, host_has_read)
        if op.is_empty and not poison.torch_fills_memory():
            poison.fill(result, self.empty_side)
        if (self.stream.index or op.has_device) and not op.mutated:
            self._note_allocation(result)
        if self.tracer is not None:
            self.tracer.add(op.name, "alloc" if op.is_empty else "kernel", op.written(args, kwargs) or result)
        return result

    def _run_now(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], host_has_read: bool) -> Any:
        try:
            return tag_all(self.execute(op, args, kwargs))
        except (IndexError, RuntimeError) as error:
            if host_has_read:
                raise
            raise asserts.at_launch(op, args, kwargs, error) from None

    def _launch_beside(
        self, capture: Capture, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], host_has_read: bool
    ) -> Any:
        """Work on a stream outside the capture: it runs at once, on memory that the capture has not touched."""
        if not op.mutated and self.stream.needs_driver():
            self.refuse_driver_allocation()
        with capture.set_aside():
            result = self._run_now(op, args, kwargs, host_has_read)
        if op.is_empty:
            poison.fill(result, self.empty_side)
        if not op.mutated and isinstance(result, torch.Tensor) and result.nbytes >= LARGE_ALLOCATION:
            if not self.stream.has_free_block(result.nbytes):
                self.refuse_driver_allocation()
        if not op.mutated:
            self._note_allocation(result)
        if self.tracer is not None:
            self.tracer.add_unrecorded(op.name, "at once", op.func, args, kwargs, result)
        return result

    def _note_allocation(self, result: Any) -> None:
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            self.stream.allocate(result)

    def execute(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an op on the memory behind the tensors; a random op draws from the device's generator."""
        if not op.seeded:
            return op.call(*args, **kwargs)
        given = kwargs.get("generator")
        if given is None:
            generator = self.generator
        elif given._cdata in self.machine.generators:
            generator = self.machine.generators[given._cdata]
        else:
            raise GeneratorError("Expected a 'cuda' device type for generator but found 'cpu'")
        root = about_to_draw(generator, self.stream.capture)
        if op.takes_generator:
            return op.call(*args, **{**kwargs, "generator": root})
        host = torch.default_generator
        kept = host.get_state()
        host.set_state(_get_state(root))
        try:
            return op.call(*args, **kwargs)
        finally:
            _set_state(root, host.get_state())
            host.set_state(kept)

    def check_same_device(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], host: list[torch.Tensor]) -> None:
        """Refuses host tensors among device tensors, as the op's own device check or TensorIterator's does."""
        if op.cpu_scalars:
            written = op.written(args, kwargs)
            if all(h.dim() == 0 and not any(h is w for w in written) for h in host):
                return
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
        first = host[0]
        name = "tensors"
        for argument, value in zip(op.func._schema.arguments, args, strict=False):
            if value is first:
                name = argument.name
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but got {name} is on cpu, different from other tensors on "
            f"cuda:0 (when checking argument in method wrapper_CUDA_{op.func._overloadname.replace('default', '')}_"
            f"{op.func._schema.name.split('::')[1]})"
        )


def any_sim(values: Any) -> bool:
    for value in values:
        if is_sim(value) or (isinstance(value, (list, tuple)) and any_sim(value)):
            return True
    return False


__all__ = ["CudaError", "Runtime", "active", "any_sim", "current"]
