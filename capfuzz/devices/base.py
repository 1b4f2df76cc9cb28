"""The interface between the check and a device, and the registry of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.devices.tracer import Tracer

Body = Callable[[], Any]


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

    def replay(self, seed: int, tracer: Tracer | None = None) -> None: ...

    def close(self) -> None: ...


class Device(Protocol):
    """Allocate and fill buffers, run eagerly, capture, replay, read back."""

    name: str

    def describe(self) -> str:
        """One line for reports: what the device is and which torch drives it."""
        ...

    def buffer(self, argument: Argument) -> Buffer: ...

    def eager(self, body: Body, seed: int, tracer: Tracer | None = None) -> Any: ...

    def capture(self, body: Body, seed: int) -> Graph:
        """Captures `body`; raises what the device raises."""
        ...

    def read(self, tensor: torch.Tensor) -> np.ndarray:
        """A host copy of an output's values."""
        ...

    def on_device(self, tensor: torch.Tensor) -> bool: ...

    def failed_op(self, error: BaseException) -> str | None:
        """The op that raised `error`, where the device can tell."""
        ...


Opener = Callable[[], AbstractContextManager[Device]]


def open_device(name: str) -> AbstractContextManager[Device]:
    """Opens a device by name. Raises `ValueError` for a name that is none."""
    openers = _openers()
    if name not in openers:
        raise ValueError(f"unknown device {name!r}; there are: {', '.join(sorted(openers))}")
    return openers[name]()


def device_names() -> tuple[str, ...]:
    return tuple(sorted(_openers()))


def _openers() -> Mapping[str, Opener]:
    from capfuzz.devices.sim.device import SimDevice

    return {"sim": SimDevice}
