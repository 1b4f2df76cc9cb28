"""Which memory a Triton kernel may touch.

Triton's interpreter follows every address, and a wild one takes the process down or spoils its heap. Here each access must lie
in the memory of a live tensor of the device, or of the host if that is pinned. Hardware may say nothing of a wild address, if
something happens to be mapped there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from capfuzz.devices.sim.tensor import PinnedMemory, SimTensor, is_sim


class IllegalAccessError(torch.AcceleratorError):
    """A kernel reads or writes what is no tensor's memory."""


IllegalAccessError.__name__ = IllegalAccessError.__qualname__ = torch.AcceleratorError.__name__
IllegalAccessError.__module__ = "torch"


class _Memory:
    """The storages of some tensors, by address."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        ranges: dict[tuple[int, int], torch.Tensor] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes():
                ranges[storage.data_ptr(), storage.data_ptr() + storage.nbytes()] = tensor
        # Of two that lie over each other (both made of one array) the outer one counts.
        outer: list[tuple[int, int]] = []
        for start, end in sorted(ranges, key=lambda bounds: (bounds[0], -bounds[1])):
            if not outer or end > outer[-1][1]:
                outer.append((start, end))
        self._starts = np.array([start for start, _ in outer], np.uint64)
        self._ends = np.array([end for _, end in outer], np.uint64)
        self._tensors = [ranges[bounds] for bounds in outer]

    def lacks(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Those of `addresses` at which no `size` bytes lie in one storage."""
        if not self._tensors:
            return addresses
        place = np.searchsorted(self._starts, addresses, side="right") - 1
        found: np.ndarray = addresses[(place < 0) | (addresses > self._ends[place] - np.uint64(size))]
        return found

    def at(self, addresses: np.ndarray) -> list[torch.Tensor]:
        places = np.unique(np.searchsorted(self._starts, addresses, side="right") - 1)
        return [self._tensors[place] for place in places]


class CheckedAccess:
    """Triton's loads, stores and atomics, with every address looked at first."""

    def __init__(
        self,
        interpreter: Any,
        kernel: str,
        tensors: Iterable[torch.Tensor],
        pinned: PinnedMemory,
        meets: Callable[[torch.Tensor], None] | None,
    ) -> None:
        self._real = interpreter._interpreter
        self._builder = interpreter.interpreter_builder
        self._kernel = kernel
        self._pinned = pinned
        self._meets = meets
        self._met = list(tensors)
        self._memory = _Memory(self._met)

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
        unknown = self._memory.lacks(addresses, size)
        if unknown.size:
            self._meet(unknown, size, does)

    def _meet(self, addresses: np.ndarray, size: int, does: str) -> None:
        """An address may come from a table of addresses in device memory: then any tensor that lives may be meant."""
        living = _Memory(_living_tensors(self._pinned))
        wild = living.lacks(addresses, size)
        if wild.size:
            raise IllegalAccessError(
                f"CUDA error: an illegal memory access was encountered (the Triton kernel {self._kernel} {does} {size} bytes "
                f"at {int(wild[0]):#x} in program {self._builder.grid_idx}: no tensor has its memory there)"
            )
        for tensor in living.at(addresses):
            if self._meets is not None:
                self._meets(tensor)
            self._met.append(tensor)
        self._memory = _Memory(self._met)


def _living_tensors(pinned: PinnedMemory) -> list[torch.Tensor]:
    """Every tensor that Python knows of, if a kernel may use its memory."""
    tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor or issubclass(type(item), SimTensor)]
    return [t for t in tensors if t.layout is torch.strided and (is_sim(t) or (t.device.type == "cpu" and t in pinned))]
