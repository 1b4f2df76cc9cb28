"""The real device as the check drives it.

Captures go through `capture_begin` and `capture_end` on a stream of their own, into one pool that a small graph keeps alive (a
pool whose last graph has gone fails an internal assert); one capture in some takes the way through `torch.cuda.graph` that
users take, which costs a garbage collection of the allocator. Facts measured on an H200, torch 2.11.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from capfuzz.devices import poison
from capfuzz.devices.base import Body, DeviceMissingError
from capfuzz.devices.cuda.watch import OutsideBuffer, PoisonMode, Watch
from capfuzz.devices.errors import DanglingBufferError
from capfuzz.devices.layout import Argument, HostMemory, Space
from capfuzz.devices.trace import OpRecord
from capfuzz.devices.tracer import Tracer, host_values

USERS_WAY_EVERY = 64  # captures
MOST_RENEWALS = 200  # of the pool, in one process


class CudaBuffer:
    """An argument's memory: a flat base on the device (or in host memory) and the view of it that the argument is."""

    def __init__(self, argument: Argument) -> None:
        self._memory = HostMemory(argument)
        host = torch.from_numpy(self._memory.base)
        self._staged = argument.space is not Space.HOST
        if argument.space is Space.DEVICE:
            base = host.cuda()
        elif argument.space is Space.PINNED:
            base = host.pin_memory()
        else:
            base = host
        self._base = base
        self.tensor = self._memory.tensor(base)
        self._pristine = self._memory.base.copy()

    def write(self, array: np.ndarray) -> None:
        self._memory.base[...] = self._pristine
        self._memory.view[...] = array
        if self._staged:
            self._base.copy_(torch.from_numpy(self._memory.base))

    def snapshot(self) -> np.ndarray:
        if not self._staged:
            copied: np.ndarray = self._memory.base.copy()
            return copied
        return host_values(self._base)

    def guard_intact(self, base: np.ndarray) -> bool:
        return self._memory.guard_intact(base)


class CudaCapturedGraph:
    """A captured graph, what the captured call returned, and the outside memory that the graph uses."""

    def __init__(self, device: CudaDevice, graph: torch.cuda.CUDAGraph, result: Any, watch: Watch) -> None:
        self._device = device
        self._graph = graph
        self.result = result
        self._outside: list[OutsideBuffer] = list(watch.outside.values())
        self._kept = watch.kept

    def replay(self, seed: int, tracer: Tracer | None = None) -> None:
        for buffer in self._outside:
            if buffer.storage.expired():
                raise DanglingBufferError(buffer.what, buffer.op, buffer.location)
        self._device.seed(seed)
        self._graph.replay()
        self._device.synchronize()
        if tracer is not None:
            for kept in self._kept:
                values = [host_values(copy) for copy in kept.copies]
                tracer.records.append(OpRecord(kept.op, kept.location, kept.kind, kept.storages, values))

    def close(self) -> None:
        self._graph.reset()
        self.result = None
        self._kept = []


class CudaDevice:
    """`cuda`: CUDA and HIP through `torch.cuda`. Use it as a context manager.

    Raises `DeviceMissingError` where there is no GPU that this torch can use.
    """

    name = "cuda"

    def __init__(self, number: int = 0) -> None:
        if not torch.cuda.is_available():
            built = "a CPU build" if torch.version.cuda is None and torch.version.hip is None else "built for GPUs"
            raise DeviceMissingError(f"--device cuda: no GPU is available here (torch {torch.__version__} is {built})")
        self._index = number % torch.cuda.device_count()

    def __enter__(self) -> CudaDevice:
        torch.cuda.set_device(self._index)
        self._stream = torch.cuda.Stream()
        self._captures = 0
        self._failed_op: str | None = None
        self._renewals = 0
        self._poison = PoisonMode(poison.EAGER)
        self._waits = False
        self._open_pool()
        self._check_poison()
        return self

    def __exit__(self, *exc: object) -> None:
        self._keeper.reset()

    def _open_pool(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._keeper = torch.cuda.CUDAGraph()
        anything = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            self._keeper.capture_begin(pool=self._pool)
            self._kept_alive = anything + 1
            self._keeper.capture_end()

    def _check_poison(self) -> None:
        """A fill that the device skipped would prove nothing."""
        for side, mode in ((poison.EAGER, PoisonMode(poison.EAGER)), (poison.CAPTURE, Watch(poison.CAPTURE, None))):
            with mode:
                fresh = torch.empty(3, dtype=torch.int32, device="cuda")
            if fresh.tolist() != [poison.value(torch.int32, side)] * 3:
                raise RuntimeError(
                    f"memory was not poisoned on {self.describe()}: what capfuzz would report is not to be trusted"
                )

    def describe(self) -> str:
        runtime = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return f"cuda ({torch.cuda.get_device_name()}, {runtime}, torch {torch.__version__})"

    def buffer(self, argument: Argument) -> CudaBuffer:
        return CudaBuffer(argument)

    def seed(self, seed: int) -> None:
        """`torch.manual_seed` for the devices that are here; that one formats a stack trace for each device that is not."""
        torch.default_generator.manual_seed(seed)
        torch.cuda.default_generators[self._index].manual_seed(seed)

    def synchronize(self) -> None:
        """`torch.cuda.synchronize` for the current device; that one asks for the device's number first, in Python."""
        torch._C._cuda_synchronize()

    def eager(self, body: Body, seed: int, tracer: Tracer | None = None) -> Any:
        self.seed(seed)
        self._failed_op = None
        stream = torch._C._cuda_getCurrentStream(self._index)
        try:
            with self._watching(poison.EAGER, tracer) if tracer is not None or self._waits else self._poison:
                result = body()
        finally:
            self._restore_stream(stream)
        self.synchronize()
        return result

    def capture(self, body: Body, seed: int, tracer: Tracer | None = None) -> CudaCapturedGraph:
        self.seed(seed)
        self.synchronize()
        self._captures += 1
        graph = torch.cuda.CUDAGraph()
        capture = self._through_torch if self._captures % USERS_WAY_EVERY == 0 else self._by_hand
        stream = torch._C._cuda_getCurrentStream(self._index)
        try:
            result, watch = capture(graph, body, tracer)
        except BaseException:
            self._restore_stream(stream)
            self._recover()
            raise
        self._restore_stream(stream)
        return CudaCapturedGraph(self, graph, result, watch)

    def _by_hand(self, graph: torch.cuda.CUDAGraph, body: Body, tracer: Tracer | None) -> tuple[Any, Watch]:
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool)
            try:
                with self._watching(poison.CAPTURE, tracer) as watch:
                    result = body()
            except BaseException:
                torch.cuda.set_stream(self._stream)
                with contextlib.suppress(RuntimeError):  # it only says that the capture failed
                    graph.capture_end()
                raise
            torch.cuda.set_stream(self._stream)
            graph.capture_end()
        return result, watch

    def _through_torch(self, graph: torch.cuda.CUDAGraph, body: Body, tracer: Tracer | None) -> tuple[Any, Watch]:
        graphed = torch.cuda.graph(graph, pool=self._pool, stream=self._stream)
        with graphed, self._watching(poison.CAPTURE, tracer) as watch:
            result = body()
        return result, watch

    def _recover(self) -> None:
        """Mends what a failed capture leaves: a generator that was drawn from (seeding does not mend it), and the pool.

        `capture_end` raises before it tells the allocator that the capture is over; the pool then takes no other capture.
        """
        generator = torch.cuda.default_generators[self._index]
        generator.graphsafe_set_state(generator.clone_state())
        self.synchronize()
        self._renewals += 1
        self._open_pool()

    @contextlib.contextmanager
    def _watching(self, side: int, tracer: Tracer | None) -> Iterator[Watch]:
        self._failed_op = None
        watch = Watch(side, tracer, waits=self._waits and side == poison.EAGER)
        try:
            with watch:
                yield watch
        finally:
            self._failed_op = watch.failed_op

    def _restore_stream(self, before: tuple[int, int, int]) -> None:
        """The implementation may leave another stream current, and so does a failed `torch.cuda.graph`."""
        if torch._C._cuda_getCurrentStream(self._index) != before:
            number, index, kind = before
            torch.cuda.set_stream(torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind))

    def read(self, tensor: torch.Tensor) -> np.ndarray:
        return host_values(tensor)

    def on_device(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cuda)

    def failed_op(self, error: BaseException) -> str | None:
        return self._failed_op

    @contextlib.contextmanager
    def exact(self) -> Iterator[None]:
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def is_healthy(self) -> bool:
        """Whether the process is good for another case.

        An assert on the device is for ever; and each pool that a failed capture spoiled makes every allocation a little slower.
        """
        if self._renewals > MOST_RENEWALS:
            return False
        try:
            self.synchronize()
            torch.zeros(1, device="cuda").item()
        except RuntimeError:
            return False
        return True
