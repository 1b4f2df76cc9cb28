"""The real device as the check drives it.

Captures go through `capture_begin` and `capture_end` on a stream of their own, into one pool that a small graph keeps alive (a
pool whose last graph has gone fails an internal assert); one capture in some takes the way through `torch.cuda.graph` that
users take, which costs a garbage collection of the allocator. Facts measured on an H200, torch 2.11.

How closely user code is looked at. At first: eager calls are poisoned, and captures are looked at op by op. Where that shows no
`torch.empty`, and no memory that looking call by call does not show, the device goes on with less: of the eager calls only
warm-ups are looked at, and captures call by call. What is seen then that asks for more (`torch.empty`, a capture that fails,
freed memory) brings the closer look back for good; `LookAgainError` says that a case has to begin again with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from capfuzz.devices import poison
from capfuzz.devices.base import Body, Buffer, DeviceMissingError, LookAgainError, uncollected
from capfuzz.devices.cuda.calls import CallWatch
from capfuzz.devices.cuda.staging import Staging
from capfuzz.devices.cuda.user_graphs import UserGraphs
from capfuzz.devices.cuda.watch import Kept, OutsideBuffer, Watch
from capfuzz.devices.layout import Argument, HostMemory, Space
from capfuzz.devices.trace import OpRecord
from capfuzz.devices.tracer import Tracer, host_values

USERS_WAY_EVERY = 64  # captures; these are looked at op by op as well
CLOSELY_AT_FIRST = 3  # warm-ups and captures
MOST_RENEWALS = 200  # of the pool, in one process
_CHURNED = (512, 1024, 2048, 4096, 16384, 65536)  # bytes; the allocator's smallest block has 512


class CudaBuffer:
    """An argument's memory: a flat base on the device (or in host memory) and the view of it that the argument is."""

    def __init__(self, argument: Argument, staging: Staging, device: torch.device) -> None:
        self._memory = HostMemory(argument)
        self._staging = staging
        self._space = argument.space
        if argument.space is Space.DEVICE:
            self.base = staging.on_device(self._memory.base, device)
        else:
            host = torch.from_numpy(self._memory.base)
            self.base = host.pin_memory() if argument.space is Space.PINNED else host
        self.tensor = self._memory.tensor(self.base)
        # The implementation may write the guard cells of what it is given, and no other.
        self._pristine = self._memory.base.copy() if argument.space is Space.HOST else None

    def write(self, array: np.ndarray) -> None:
        memory = self._memory
        if self._pristine is not None:
            memory.base[...] = self._pristine
        memory.view[...] = array
        if self._space is Space.DEVICE:
            self._staging.upload(memory.base, self.base)
        elif self._space is Space.PINNED:
            self.base.copy_(torch.from_numpy(memory.base))

    def snapshot(self) -> np.ndarray:
        return host_values(self.base)

    def guard_intact(self, base: np.ndarray) -> bool:
        return self._memory.guard_intact(base)


@dataclass
class Seen:
    """What one capture was seen to do: the outside memory that it used, what a trace keeps, and whether op by op."""

    op_by_op: bool
    outside: dict[int, OutsideBuffer] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    missed: bool = False
    """The ops used memory that the calls alone do not show."""
    saw_empty: bool = False


class CudaCapturedGraph:
    """A captured graph, what the captured call returned, and what was seen of it."""

    def __init__(self, device: CudaDevice, graph: torch.cuda.CUDAGraph, result: Any, seen: Seen) -> None:
        self._device = device
        self._graph = graph
        self.result = result
        self._outside = list(seen.outside.values())
        self._op_by_op = seen.op_by_op
        self._kept = seen.kept

    def replay(self, seed: int, tracer: Tracer | None = None) -> None:
        for buffer in self._outside:
            if buffer.is_freed and not self._op_by_op:
                self._device.look_closer()
                raise LookAgainError("memory that the graph seems to use was freed")
            buffer.refuse_freed()
        self._device.seed(seed)
        self._graph.replay()  # who reads what it wrote waits for it
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
        self._torch_device = torch.device("cuda", self._index)

    def __enter__(self) -> CudaDevice:
        torch.cuda.set_device(self._index)
        self._stream = torch.cuda.Stream()
        self._captures = 0
        self._failed_op: str | None = None
        self._renewals = 0
        self._warm_ups = 0
        self._saw_empty = False
        self._op_by_op = False
        self._waits = False
        self._staging = Staging(self.synchronize)
        with contextlib.ExitStack() as opened:  # what fails here leaves torch as it was
            self._user_graphs = opened.enter_context(UserGraphs())
            self._open_pool()
            opened.callback(lambda: self._keeper.reset())  # the last one
            self._check_poison()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def _open_pool(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._keeper = self._user_graphs.own_graph()
        anything = torch.zeros(1, device="cuda")
        self.synchronize()
        with torch.cuda.stream(self._stream):
            self._keeper.capture_begin(pool=self._pool)
            self._kept_alive = anything + 1
            self._keeper.capture_end()

    def _check_poison(self) -> None:
        """A fill that the device skipped would prove nothing."""
        for side, mode in ((poison.EAGER, CallWatch(poison.EAGER)), (poison.CAPTURE, Watch(poison.CAPTURE, None))):
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
        return CudaBuffer(argument, self._staging, self._torch_device)

    def seed(self, seed: int) -> None:
        """`torch.manual_seed` for the devices that are here; that one formats a stack trace for each device that is not."""
        torch.default_generator.manual_seed(seed)
        torch.cuda.default_generators[self._index].manual_seed(seed)

    def synchronize(self) -> None:
        """`torch.cuda.synchronize` for the current device; that one asks for the device's number first, in Python."""
        torch._C._cuda_synchronize()
        self._staging.pending = False

    @property
    def _poisons(self) -> bool:
        return self._saw_empty or self._warm_ups < CLOSELY_AT_FIRST

    def eager(self, body: Body, seed: int, tracer: Tracer | None = None) -> Any:
        self._failed_op = None
        if tracer is not None or self._waits:
            return self._eager(body, seed, self._watching(poison.EAGER, tracer))
        if not self._poisons:
            return self._eager(body, seed, None)
        calls = CallWatch(poison.EAGER)
        result = self._eager(body, seed, calls)
        self._saw_empty = self._saw_empty or calls.saw_empty
        return result

    def warm_up(self, body: Body, seed: int) -> Any:
        """Poisoned whatever the eager calls before were; if those were not, and should have been, they are to come again."""
        poisoned = self._poisons
        self._warm_ups += 1
        if self._waits:
            return self.eager(body, seed)
        self._failed_op = None
        calls = CallWatch(poison.EAGER)
        result = self._eager(body, seed, calls)
        self._saw_empty = self._saw_empty or calls.saw_empty
        if calls.saw_empty and not poisoned:
            raise LookAgainError("torch.empty was called")
        return result

    def _eager(self, body: Body, seed: int, mode: AbstractContextManager[Any] | None) -> Any:
        if self._staging.pending:  # the implementation may use a stream that does not wait for this one
            self.synchronize()
        self.seed(seed)
        self._user_graphs.failed_op = None
        stream = torch._C._cuda_getCurrentStream(self._index)
        try:
            if mode is None:
                result = body()
            else:
                with mode:
                    result = body()
        finally:
            self._user_graphs.abandon()
            self._restore_stream(stream)
        self.synchronize()
        return result

    def capture(self, body: Body, seed: int, tracer: Tracer | None = None) -> CudaCapturedGraph:
        self._captures += 1
        users_way = self._captures % USERS_WAY_EVERY == 0
        op_by_op = self._op_by_op or users_way or self._captures <= CLOSELY_AT_FIRST or tracer is not None
        try:
            graph, result, seen = self._captured(body, seed, tracer, users_way, op_by_op)
        except Exception:
            if not op_by_op:  # which op it was
                self._op_by_op = True
                with contextlib.suppress(Exception):
                    self._captured(body, seed, None, users_way, True)[0].reset()
            raise
        self._op_by_op = self._op_by_op or seen.missed
        self._saw_empty = self._saw_empty or seen.saw_empty
        return CudaCapturedGraph(self, graph, result, seen)

    def look_closer(self) -> None:
        """Looks at every capture from now on op by op."""
        self._op_by_op = True

    def _captured(
        self, body: Body, seed: int, tracer: Tracer | None, users_way: bool, op_by_op: bool
    ) -> tuple[torch.cuda.CUDAGraph, Any, Seen]:
        self.seed(seed)
        self.synchronize()
        graph = self._user_graphs.own_graph()
        looking = self._op_by_op_and_call_by_call(tracer) if op_by_op else self._call_by_call()
        stream = torch._C._cuda_getCurrentStream(self._index)
        try:
            with uncollected():
                result, seen = (self._through_torch if users_way else self._by_hand)(graph, body, looking)
        except BaseException:
            self._restore_stream(stream)
            self._recover()
            raise
        self._restore_stream(stream)
        return graph, result, seen

    def _by_hand(self, graph: torch.cuda.CUDAGraph, body: Body, looking: AbstractContextManager[Seen]) -> tuple[Any, Seen]:
        torch.cuda.set_stream(self._stream)
        graph.capture_begin(pool=self._pool)
        try:
            with looking as seen:
                result = body()
        except BaseException:
            torch.cuda.set_stream(self._stream)
            with contextlib.suppress(RuntimeError):  # it only says that the capture failed
                graph.capture_end()
            raise
        torch.cuda.set_stream(self._stream)
        graph.capture_end()
        return result, seen

    def _through_torch(
        self, graph: torch.cuda.CUDAGraph, body: Body, looking: AbstractContextManager[Seen]
    ) -> tuple[Any, Seen]:
        graphed = torch.cuda.graph(graph, pool=self._pool, stream=self._stream)
        with graphed, looking as seen:
            result = body()
        return result, seen

    @contextlib.contextmanager
    def _call_by_call(self) -> Iterator[Seen]:
        self._failed_op = None
        seen = Seen(op_by_op=False)
        calls = CallWatch(poison.CAPTURE)
        with calls:
            yield seen
        seen.outside, seen.missed, seen.saw_empty = calls.outside, calls.is_blind, calls.saw_empty

    @contextlib.contextmanager
    def _op_by_op_and_call_by_call(self, tracer: Tracer | None) -> Iterator[Seen]:
        """A trace must show the implementation's ops alone; only without one are the calls looked at for comparison."""
        seen = Seen(op_by_op=True)
        with self._watching(poison.CAPTURE, tracer) as watch:
            calls = CallWatch(poison.CAPTURE, above=watch)
            with calls if tracer is None else contextlib.nullcontext():
                yield seen
        seen.outside, seen.kept, seen.saw_empty = watch.outside, watch.kept, calls.saw_empty
        seen.missed = calls.is_blind or (tracer is None and not watch.outside.keys() <= calls.outside.keys())

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
            torch._C._cuda_setStream(stream_id=number, device_index=index, device_type=kind)

    def read(self, tensor: torch.Tensor) -> np.ndarray:
        return host_values(tensor)

    def read_all(self, tensors: Sequence[torch.Tensor], buffers: Sequence[Buffer]) -> list[np.ndarray]:
        bases = [buffer.base for buffer in cast("Sequence[CudaBuffer]", buffers)]
        return self._staging.download([*tensors, *bases])

    def on_device(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cuda)

    def failed_op(self, error: BaseException) -> str | None:
        return self._failed_op or self._user_graphs.failed_op

    @contextlib.contextmanager
    def exact(self) -> Iterator[None]:
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def churn(self) -> None:
        """Allocates blocks of every size that metadata has, several at a time, fills them, and lets them go."""
        blocks = [torch.full((size,), 0x5C, dtype=torch.uint8, device="cuda") for size in _CHURNED for _ in range(8)]
        host = [torch.full((size,), 0x5C, dtype=torch.uint8).pin_memory() for size in _CHURNED]
        self.synchronize()
        del blocks, host

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
