"""The interface between the check and a device, and the registry of devices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.devices.tracer import Tracer

Body = Callable[[], Any]


class DeviceMissingError(RuntimeError):
    """This machine has no such device."""


class LookAgainError(BaseException):
    """The device has seen something that it must look at more closely, and is now ready to: the case has to begin again.

    No `Exception`: what takes an implementation's errors for its faults must not take this for one.
    """


class Buffer(Protocol):
    """One argument's memory: `tensor` is what the implementation is given."""

    tensor: torch.Tensor

    def write(self, array: np.ndarray) -> None:
        """Copies new contents in, and the guard zone's canaries back."""
        ...

    def snapshot(self) -> np.ndarray:
        """A host copy of the whole base, guard cells included."""
        ...

    def guard_intact(self, base: np.ndarray) -> bool: ...


class Graph(Protocol):
    """A captured graph and what the captured call returned."""

    result: Any

    def replay(self, seed: int, tracer: Tracer | None = None) -> None:
        """Launches the graph. An error of the device may be raised only where what the graph wrote is read."""
        ...

    def close(self) -> None: ...


class Device(Protocol):
    """Allocate and fill buffers, run eagerly, capture, replay, read back."""

    name: str

    def describe(self) -> str:
        """One line for reports: what the device is and which torch drives it."""
        ...

    def buffer(self, argument: Argument) -> Buffer: ...

    def eager(self, body: Body, seed: int, tracer: Tracer | None = None) -> Any: ...

    def warm_up(self, body: Body, seed: int) -> Any:
        """`eager` for the captured inputs, looked at as closely as a capture is. May raise `LookAgainError`, as a graph's
        `replay` may."""
        ...

    def capture(self, body: Body, seed: int, tracer: Tracer | None = None) -> Graph:
        """Captures `body`; raises what the device raises. A tracer `of_capture` is told of every op up to there."""
        ...

    def read(self, tensor: torch.Tensor) -> np.ndarray:
        """A host copy of an output's values."""
        ...

    def read_all(self, tensors: Sequence[torch.Tensor], buffers: Sequence[Buffer]) -> list[np.ndarray]:
        """`read` of each tensor, then the `snapshot` of each buffer, with one wait for all."""
        ...

    def on_device(self, tensor: torch.Tensor) -> bool: ...

    def exact(self) -> AbstractContextManager[None]:
        """Inside, eager code waits after each op, so that an error is raised by the op that made it."""
        ...

    def churn(self) -> None:
        """Reuses memory that was freed: what still points there reads something else from here on."""
        ...

    def is_healthy(self) -> bool:
        """Whether the next case can run here. Asked after a fault."""
        ...

    def failed_op(self, error: BaseException) -> str | None:
        """The op that raised `error`, where the device can tell."""
        ...


@contextmanager
def uncollected() -> Iterator[None]:
    """Puts the garbage collector off: a graph in a reference cycle, if destroyed during a capture, would cost that capture."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


Opener = Callable[[int], AbstractContextManager[Device]]


def open_device(name: str, number: int = 0) -> AbstractContextManager[Device]:
    """Opens a device by name; where there are several, the one that worker `number` takes. Raises `ValueError` for a name that
    is none, `DeviceMissingError` where this machine has no such device."""
    openers = _openers()
    if name not in openers:
        raise ValueError(f"unknown device {name!r}; there are: {', '.join(sorted(openers))}")
    return openers[name](number)


def device_names() -> tuple[str, ...]:
    return tuple(sorted(_openers()))


def _openers() -> Mapping[str, Opener]:
    return {"sim": _open_sim, "cuda": _open_cuda}


def _open_sim(number: int) -> AbstractContextManager[Device]:
    from capfuzz.devices.sim.device import SimDevice

    return SimDevice()


def _open_cuda(number: int) -> AbstractContextManager[Device]:
    from capfuzz.devices.cuda.device import CudaDevice

    return CudaDevice(number)
