"""Streams and events: who takes part in a capture.

Stream objects come from a pool of 32, handed out in turn, as PyTorch's do. An event recorded on a capturing stream belongs to
that capture: another stream that waits for it joins (a fork), and the capture's first stream must have waited for the last
work of every stream that joined when capture ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from capfuzz.devices.errors import CudaError, Rule, not_permitted
from capfuzz.devices.sim.tensor import CUDA

if TYPE_CHECKING:
    from capfuzz.devices.sim.capture import Capture
    from capfuzz.devices.sim.runtime import Runtime

STREAMS_IN_POOL = 32
LARGE_ALLOCATION = 1 << 20  # bytes: smaller ones share segments (`CUDACachingAllocator.cpp`, kSmallSize)


class StreamState:
    """What the device keeps of one stream: the capture it takes part in, its work counter, its allocator's cache."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.capture: Capture | None = None
        self.work = 0
        self.cached: list[tuple[StorageWeakRef, int]] = []

    @property
    def handle(self) -> int:
        """The raw `cudaStream_t`: 0 is the default stream, 1 and 2 mean something else to CUDA."""
        return self.index and self.index << 8

    def allocate(self, tensor: torch.Tensor) -> None:
        """Notes what the allocator has handed out on this stream; of the default one only what is large."""
        if self.index or tensor.nbytes >= LARGE_ALLOCATION:
            self.cached.append((StorageWeakRef(tensor.untyped_storage()), tensor.nbytes))

    def needs_driver(self) -> bool:
        """True when even a small allocation on this stream would have to call `cudaMalloc`: its allocator holds no segment."""
        # The default stream's segments hold every buffer made outside a capture: they are never all free.
        return self.index != 0 and not self.cached

    def has_free_block(self, nbytes: int) -> bool:
        """Whether memory that was dropped on this stream is large enough; it is then in use again."""
        for position, (storage, size) in enumerate(self.cached):
            if size >= nbytes and storage.expired():
                del self.cached[position]
                return True
        return False

    def empty_cache(self) -> None:
        self.cached = [(storage, size) for storage, size in self.cached if not storage.expired()]


def _runtime() -> Runtime:
    # Not imported at the top: the runtime is made of streams.
    from capfuzz.devices.sim.runtime import current

    return current()


class Stream:
    """`torch.cuda.Stream` on the simulated device."""

    def __init__(self, device: Any = None, priority: int = 0, *, state: StreamState | None = None, **kwargs: Any) -> None:
        self._state = state if state is not None else _runtime().machine.next_stream()
        self.device = CUDA
        self.device_index = 0
        self.priority = priority

    @property
    def cuda_stream(self) -> int:
        return self._state.handle

    @property
    def stream_id(self) -> int:
        return self._state.index

    def wait_event(self, event: Event) -> None:
        _runtime().wait_event(self._state, event)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        _runtime().refuse_in_capture(self._state)

    def query(self) -> bool:
        _runtime().refuse_in_capture(self._state)
        return True

    def is_capturing(self) -> bool:
        return self._state.capture is not None

    def __enter__(self) -> Stream:
        self._context = StreamContext(self)
        self._context.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.__exit__(*exc)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._state is self._state

    def __hash__(self) -> int:
        return hash((0, self._state.handle))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={CUDA} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """`torch.cuda.ExternalStream`: the stream that a raw handle stands for."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        machine = _runtime().machine
        by_handle = {state.handle: state for state in (machine.default_stream, *machine.streams)}
        if stream_ptr not in by_handle:
            raise CudaError("cudaErrorInvalidValue")
        super().__init__(state=by_handle[stream_ptr])


class Event:
    """`torch.cuda.Event` on the simulated device."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.device = CUDA
        self.enable_timing = enable_timing
        self.external = external
        self._stream: StreamState | None = None
        self._capture: Capture | None = None
        self._work: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        state = _runtime().stream if stream is None else stream._state
        self._stream = state
        if self.external and state.capture is not None:  # a node of the graph: recorded anew by every replay
            state.capture.add_work(_runtime(), "event_record", "host")
            return
        self._capture = state.capture
        joined = state.capture.joined.get(state.index, {}) if state.capture is not None else {}
        self._work = {**joined, state.index: state.work}

    def wait(self, stream: Stream | None = None) -> None:
        runtime = _runtime()
        runtime.wait_event(runtime.stream if stream is None else stream._state, self)

    def _refuse_if_captured(self) -> None:
        """An event recorded in a capture has no completion: neither while it captures nor afterwards."""
        if self._capture is None:
            return
        if self._capture.active:
            raise self._capture.invalidate(CudaError("cudaErrorCapturedEvent", Rule.SYNCHRONIZATION))
        raise CudaError("cudaErrorInvalidValue")

    def synchronize(self) -> None:
        self._refuse_if_captured()
        if self._stream is not None:  # an event never recorded is complete: no call reaches the driver
            _runtime().refuse_in_capture(self._stream)

    def query(self) -> bool:
        self._refuse_if_captured()
        if self._stream is not None:
            _runtime().refuse_in_capture(self._stream)
        return True

    def elapsed_time(self, end_event: Event) -> float:
        if self._stream is None or end_event._stream is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        self._refuse_if_captured()
        end_event._refuse_if_captured()
        return 0.0

    @property
    def cuda_event(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return "<torch.cuda.Event uninitialized>" if self._stream is None else f"<torch.cuda.Event {id(self):#x}>"


class StreamContext:
    """`with torch.cuda.stream(s):`"""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            runtime = _runtime()
            self._previous = runtime.stream
            runtime.stream = self.stream._state

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            _runtime().stream = self._previous


def wait_event(stream: StreamState, event: Event) -> None:
    """`cudaStreamWaitEvent`: a fork, a join, or a dependency that the capture may not have."""
    if event._stream is None:
        return
    if event.external and stream.capture is not None:  # a node of the graph: every replay waits
        return
    captured = event._capture
    if captured is not None and not captured.active:
        raise CudaError("cudaErrorInvalidValue")
    if captured is None:
        if stream.capture is not None:
            raise stream.capture.invalidate(CudaError("cudaErrorStreamCaptureIsolation", Rule.FOREIGN_STREAM))
        return
    if stream.index == 0:
        raise captured.invalidate(CudaError("cudaErrorStreamCaptureImplicit", Rule.FOREIGN_STREAM))
    if stream.capture is None:
        captured.fork(stream)
    elif stream.capture is not captured:
        raise stream.capture.invalidate(not_permitted(Rule.FOREIGN_STREAM))
    seen = captured.joined.setdefault(stream.index, {})
    for index, work in event._work.items():
        seen[index] = max(seen.get(index, -1), work)
