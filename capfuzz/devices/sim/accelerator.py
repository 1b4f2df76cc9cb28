"""`torch.accelerator` on the simulated machine: the same device under its neutral names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capfuzz.devices.sim import cuda_memory, streams
from capfuzz.devices.sim.runtime import current
from capfuzz.devices.sim.tensor import CUDA


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def current_stream(device: Any = None) -> streams.Stream:
    return streams.Stream(state=current().stream)


def set_stream(stream: streams.Stream) -> None:
    current().stream = stream._state


def synchronize(device: Any = None) -> None:
    current().refuse_in_capture()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "is_available": _constant(True),
    "device_count": _constant(1),
    "current_accelerator": lambda check_available=False: type(CUDA)("cuda"),
    "current_device_index": _constant(0),
    "current_device_idx": _constant(0),
    "set_device_index": _constant(None),
    "set_device_idx": _constant(None),
    "current_stream": current_stream,
    "set_stream": set_stream,
    "synchronize": synchronize,
    "get_memory_info": _constant((cuda_memory.TOTAL_MEMORY, cuda_memory.TOTAL_MEMORY)),
    **{
        name: cuda_memory.FUNCTIONS[name]
        for name in (
            "empty_cache",
            "memory_stats",
            "memory_allocated",
            "memory_reserved",
            "max_memory_allocated",
            "max_memory_reserved",
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
        )
    },
}
