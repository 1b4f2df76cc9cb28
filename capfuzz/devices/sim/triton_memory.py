"""Which memory a Triton kernel may touch.

Triton's interpreter follows every address, and a wild one takes the process down or spoils its heap. Here each access must lie
in the memory of a live tensor of the device, or of the host if that is pinned. Hardware may say nothing of a wild address, if
something happens to be mapped there.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from capfuzz.devices.sim.tensor import PinnedMemory, SimTensor, is_sim


class IllegalAccessError(torch.AcceleratorError):
    """A kernel reads or writes what is no tensor's memory."""


IllegalAccessError.__name__ = IllegalAccessError.__qualname__ = torch.AcceleratorError.__name__
IllegalAccessError.__module__ = "torch"


def _ranges(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """The address ranges of the tensors' storages, in order, those that overlap made one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted({(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in (t.untyped_storage() for t in tensors)}):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


class CheckedAccess:
    """Triton's loads, stores and atomics, with every address looked at first."""

    def __init__(self, interpreter: Any, kernel: str, tensors: tuple[torch.Tensor, ...], pinned: PinnedMemory) -> None:
        self._real = interpreter._interpreter
        self._builder = interpreter.interpreter_builder
        self._kernel = kernel
        self._pinned = pinned
        self._all_known = False
        self._know(tensors)

    def _know(self, tensors: Iterable[torch.Tensor]) -> None:
        ranges = _ranges(tensors)
        self._starts = np.array([start for start, _ in ranges], np.uint64)
        self._ends = np.array([end for _, end in ranges], np.uint64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check(pointers, mask, np.dtype(dtype).itemsize, "reads")
        return self._real.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        self._check(pointers, mask, value.dtype.itemsize, "writes")
        return self._real.store(pointers, value, mask)

    def atomic_cas(self, pointers: Any, compared: Any, value: Any, *rest: Any) -> Any:
        self._check(pointers, None, value.dtype.itemsize, "writes")
        return self._real.atomic_cas(pointers, compared, value, *rest)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._check(pointers, mask, value.dtype.itemsize, "writes")
        return self._real.atomic_rmw(operation, pointers, value, mask, *rest)

    def _check(self, pointers: Any, mask: Any, size: int, does: str) -> None:
        addresses = pointers.reshape(-1) if mask is None else pointers[np.broadcast_to(mask, pointers.shape)]
        wild = self._wild(addresses, size)
        if wild.size and not self._all_known:
            # An address may come from a table of addresses in device memory: then any tensor that lives is meant.
            self._all_known = True
            self._know(_living_tensors(self._pinned))
            wild = self._wild(addresses, size)
        if wild.size:
            raise IllegalAccessError(
                f"CUDA error: an illegal memory access was encountered (the Triton kernel {self._kernel} {does} {size} bytes "
                f"at {int(wild[0]):#x} in program {self._builder.grid_idx}: no tensor has its memory there)"
            )

    def _wild(self, addresses: np.ndarray, size: int) -> np.ndarray:
        if not self._starts.size:
            return addresses
        place = np.searchsorted(self._starts, addresses, side="right") - 1
        inside = (place >= 0) & (addresses <= self._ends[place] - np.uint64(size))
        found: np.ndarray = addresses[~inside]
        return found


def _living_tensors(pinned: PinnedMemory) -> list[torch.Tensor]:
    """Every tensor that Python knows of, if a kernel may use its memory."""
    tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor or issubclass(type(item), SimTensor)]
    return [t for t in tensors if t.layout is torch.strided and (is_sim(t) or (t.device.type == "cpu" and t in pinned))]
