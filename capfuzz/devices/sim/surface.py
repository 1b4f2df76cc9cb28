"""The function mode: what the Python surface of PyTorch says and does about devices.

It sees every `torch` call before C++ does. It takes `device="cuda"` out of factories, moves tensors between host and device
(`to`, `cpu`, `cuda`, `tolist`, `numpy`, `torch.tensor`), and keeps the call's arguments, so that a factory inside a composite
op knows whose options it takes. Everything else goes through untouched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from capfuzz.devices.errors import invalid_device
from capfuzz.devices.sim import recorded_calls, shortcuts
from capfuzz.devices.sim.runtime import Runtime

Func = Callable[..., Any]
Handler = Callable[[Runtime, Func, tuple[Any, ...], dict[str, Any]], Any]
Preparation = Callable[[Runtime, tuple[Any, ...]], tuple[Any, ...]]
_surface: dict[Any, Handler] = {}
_prepared: dict[Any, Preparation] = {}


def surface(*functions: Any) -> Callable[[Handler], Handler]:
    """Registers what a Python-level torch function does on the simulated device.

    A handler that answers `NotImplemented` has nothing to say of this call: it takes the ordinary way.
    """

    def register(handler: Handler) -> Handler:
        for function in functions:
            _surface[function] = handler
        return handler

    return register


def prepared(*functions: Any) -> Callable[[Preparation], Preparation]:
    """Registers what is done to a call's arguments before it takes the ordinary way. Not for calls of a plain shape."""

    def register(preparation: Preparation) -> Preparation:
        for function in functions:
            _prepared[function] = preparation
        return preparation

    return register


def names_cuda(device: Any) -> bool:
    """Whether `device` (a string, an index, a `torch.device`) is the simulated one. Another CUDA index is an error."""
    index: int | None
    if isinstance(device, torch.device):
        kind, index = device.type, device.index
    elif isinstance(device, int) and not isinstance(device, bool):
        kind, index = "cuda", device
    else:
        kind, _, tail = str(device).partition(":")
        index = int(tail) if tail.isdigit() else None
    if kind != "cuda":
        return False
    if index not in (None, 0):
        invalid_device(int(index))
    return True


class SimFunctionMode(TorchFunctionMode):
    """Thin on purpose: special cases are in the table."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        runtime = self.runtime
        handler = _surface.get(func)
        outer = runtime.call
        frame = sys._getframe(1)
        if handler is not None:
            runtime.call = (args, None, frame)
            try:
                result = handler(runtime, func, args, kwargs or {})
            finally:
                runtime.call = outer
            if result is not NotImplemented:
                return result
        capture = runtime.stream.capture
        if capture is None:
            may_be_short = runtime.capture is None and runtime.tracer is None and not runtime.stream.index
        else:
            may_be_short = capture.by_call
        key = shortcuts.key_of(func, args, kwargs) if may_be_short else None
        if key is not None:
            runtime.call = (args, None, frame)
            try:
                if capture is None:
                    return shortcuts.run(runtime, key, func, args, kwargs)
                return recorded_calls.run(runtime, capture, key, func, args, kwargs or {})
            finally:
                runtime.call = outer
        prepare = _prepared.get(func)
        if prepare is not None:
            args = prepare(runtime, args)
        if _device.CURRENT_DEVICE is not None and func in _device._device_constructors():
            kwargs = {**(kwargs or {}), "device": (kwargs or {}).get("device") or _device.CURRENT_DEVICE}
        try:
            if not kwargs:
                runtime.call = (args, None, frame)
                return func(*args)
            device = kwargs.get("device")
            if device is None:
                runtime.call = ((*args, *kwargs.values()), None, frame)
            else:
                on_device = names_cuda(device)
                runtime.call = (args, on_device, frame)
                if on_device:
                    kwargs = {**kwargs, "device": "cpu"}
            return func(*args, **kwargs)
        finally:
            runtime.call = outer
