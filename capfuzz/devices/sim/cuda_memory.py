"""What `torch.cuda` says of memory on the simulated machine.

Bytes are not counted: every statistic is zero, and all of an H200's memory is free. Code that logs them, resets peaks or
empties the cache runs; code that decides by them is out of the simulated device's reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from capfuzz.devices.sim.runtime import current

TOTAL_MEMORY = 150_109_880_320  # bytes: what an H200 reports
_COUNTED = ("allocation", "segment", "active", "inactive_split")
_MEASURED = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
_POOLS = ("all", "large_pool", "small_pool")
_METRICS = ("current", "peak", "allocated", "freed")
_EVENTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size")
_STATISTICS = (
    *(f"{name}.{pool}.{metric}" for name in (*_COUNTED, *_MEASURED) for pool in _POOLS for metric in _METRICS),
    *(f"{name}.{metric}" for name in ("oversize_allocations", "oversize_segments") for metric in _METRICS),
    *_EVENTS,
)
_handles = count(1)


def memory_stats(device: Any = None) -> dict[str, int]:
    return dict.fromkeys(_STATISTICS, 0)


def graph_pool_handle() -> tuple[int, int]:
    return (0, next(_handles))


def empty_cache() -> None:
    machine = current().machine
    for state in (machine.default_stream, *machine.streams):
        state.empty_cache()


class MemPool:
    """`torch.cuda.MemPool`: an id that graphs may share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.id = graph_pool_handle()
        self.allocator = None

    def use_count(self) -> int:
        return 1

    def snapshot(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    yield


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "graph_pool_handle": graph_pool_handle,
    "empty_cache": empty_cache,
    "ipc_collect": _constant(None),
    "mem_get_info": _constant((TOTAL_MEMORY, TOTAL_MEMORY)),
    "memory_stats": memory_stats,
    "host_memory_stats": _constant({}),
    "memory_snapshot": lambda *args, **kwargs: [],
    "memory_summary": _constant("the simulated device counts no memory"),
    "use_mem_pool": use_mem_pool,
    **{
        name: _constant(0)
        for name in (
            "memory_allocated",
            "memory_reserved",
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_cached",
            "max_memory_cached",
        )
    },
    **{
        name: _constant(None)
        for name in (
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
            "reset_peak_host_memory_stats",
            "reset_accumulated_host_memory_stats",
            "set_per_process_memory_fraction",
        )
    },
}
