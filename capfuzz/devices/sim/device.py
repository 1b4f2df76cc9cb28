"""The simulated device as the check drives it: modes only around the implementation's own code, replay with none."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from capfuzz.devices import poison
from capfuzz.devices.base import Body, Buffer, uncollected
from capfuzz.devices.layout import Argument, HostMemory, Space
from capfuzz.devices.sim.cuda_api import API
from capfuzz.devices.sim.dispatch import SimDispatchMode
from capfuzz.devices.sim.graph import CUDAGraph
from capfuzz.devices.sim.ops import Op
from capfuzz.devices.sim.runtime import Runtime
from capfuzz.devices.sim.streams import StreamState
from capfuzz.devices.sim.surface import SimFunctionMode
from capfuzz.devices.sim.tensor import is_sim, tag
from capfuzz.devices.tracer import Tracer, host_values


class SimBuffer:
    """An argument's memory: NumPy bytes with a tensor over them."""

    def __init__(self, argument: Argument, runtime: Runtime) -> None:
        self._memory = HostMemory(argument)
        base = torch.from_numpy(self._memory.base)
        self.tensor = self._memory.tensor(base)
        if argument.space is Space.DEVICE:
            tag(self.tensor)
        elif argument.space is Space.PINNED:
            runtime.pinned.add(base)
        self._pristine = self._memory.base.copy()

    def write(self, array: np.ndarray) -> None:
        self._memory.base[...] = self._pristine
        self._memory.view[...] = array

    def snapshot(self) -> np.ndarray:
        base: np.ndarray = self._memory.base.copy()
        return base

    def guard_intact(self, base: np.ndarray) -> bool:
        return self._memory.guard_intact(base)


class SimCapturedGraph:
    """A captured graph on the simulated device."""

    def __init__(self, runtime: Runtime, graph: CUDAGraph, result: Any) -> None:
        self._runtime = runtime
        self._graph = graph
        self.result = result

    def replay(self, seed: int, tracer: Tracer | None = None) -> None:
        self._runtime.generator.seed_root(seed)
        if tracer is None:
            self._graph.replay()
        else:
            self._graph.replay_traced(tracer)

    def close(self) -> None:
        self._graph.reset()
        self.result = None


class SimDevice:
    """`sim`: graph capture without a GPU. Use it as a context manager."""

    name = "sim"

    def __init__(self) -> None:
        self.runtime = Runtime()
        self._function_mode = SimFunctionMode(self.runtime)
        self._dispatch_mode = SimDispatchMode(self.runtime)
        self._capture_stream: StreamState = self.runtime.machine.next_stream()

    def __enter__(self) -> SimDevice:
        # Metadata tensors are small: a thread pool costs more than it gives, and a second worker would share its cores.
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        API.install()
        self._previous = self.runtime.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.runtime.machine.is_open = False
        Runtime.uninstall(self._previous)
        API.uninstall()
        torch.set_num_threads(self._threads)

    def describe(self) -> str:
        return f"sim (simulated CUDA graphs on the CPU, torch {torch.__version__}, {platform.machine()})"

    def buffer(self, argument: Argument) -> SimBuffer:
        return SimBuffer(argument, self.runtime)

    def _seed(self, seed: int) -> None:
        self.runtime.generator.seed_root(seed)
        torch.default_generator.manual_seed(seed)

    def eager(self, body: Body, seed: int, tracer: Tracer | None = None) -> Any:
        self._seed(seed)
        runtime = self.runtime
        runtime.tracer = tracer
        try:
            with self._function_mode, self._dispatch_mode:
                return body()
        finally:
            runtime.tracer = None
            runtime.stream = runtime.default_stream

    def warm_up(self, body: Body, seed: int) -> Any:
        return self.eager(body, seed)

    def capture(self, body: Body, seed: int, tracer: Tracer | None = None) -> SimCapturedGraph:
        self._seed(seed)
        runtime = self.runtime
        if tracer is not None and tracer.of_capture:
            runtime.tracer = tracer
            body = tracer.watching(body)
        graph = CUDAGraph()
        runtime.stream = self._capture_stream
        runtime.empty_side = poison.CAPTURE
        try:
            graph.capture_begin()
            assert runtime.capture is not None
            runtime.capture.by_call = tracer is None
            try:
                with uncollected(), self._function_mode, self._dispatch_mode:
                    result = body()
            except BaseException:
                graph.abort()
                raise
            runtime.stream = self._capture_stream
            graph.end_capture()
        finally:
            runtime.tracer = None
            runtime.stream = runtime.default_stream
            runtime.empty_side = poison.EAGER
        return SimCapturedGraph(runtime, graph, result)

    def read(self, tensor: torch.Tensor) -> np.ndarray:
        return host_values(tensor)

    def read_all(self, tensors: Sequence[torch.Tensor], buffers: Sequence[Buffer]) -> list[np.ndarray]:
        return [*map(host_values, tensors), *(buffer.snapshot() for buffer in buffers)]

    def on_device(self, tensor: torch.Tensor) -> bool:
        return is_sim(tensor)

    def exact(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing is asynchronous

    def churn(self) -> None:
        """A graph that uses freed memory is refused here, whoever has it since."""

    def is_healthy(self) -> bool:
        return True

    def failed_op(self, error: BaseException) -> str | None:
        tb = error.__traceback__
        found: str | None = None
        while tb is not None:
            # To ask a frame for its locals keeps them, the error among them: the graph of a fault would die in a later capture.
            if "op" in tb.tb_frame.f_code.co_varnames:
                op = tb.tb_frame.f_locals.get("op")
                found = op.name if isinstance(op, Op) else found
            tb = tb.tb_next
        return found
