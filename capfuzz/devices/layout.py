"""How an array lies in memory: the layouts that a case may ask for, and the guard zone around each buffer.

A buffer is a flat base with *guard* cells of a canary value wherever no element lies: in front of a storage offset, between
strided elements, behind the end. An op that is blind to strides reads canaries; one that writes out of bounds leaves a mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch

GUARD_CELLS = 4


class Space(str, Enum):
    """Where an argument lives."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned"


@dataclass(frozen=True)
class Layout:
    """`before` cells precede the first element; neighbours in the innermost dimension are `step` cells apart."""

    name: str
    before: int
    step: int


CONTIGUOUS = Layout("contiguous", 0, 1)
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        CONTIGUOUS,
        Layout("offset", 3, 1),  # a slice of a larger buffer: base[3:]
        Layout("strided", 0, 2),  # base[::2]
        Layout("column", 1, 3),  # base.view(n, 3)[:, 1]
    )
}


@dataclass(frozen=True)
class Argument:
    """One array that an implementation is called with: logical values, layout in memory, and where it lives."""

    array: np.ndarray
    layout: Layout = CONTIGUOUS
    space: Space = Space.DEVICE
    is_state: bool = False
    """The op reads and advances it: replays find what the last one left, they are not given new contents."""


def canary(dtype: np.dtype) -> int | float | bool:
    """The guard value: finite, and no plausible offset."""
    if dtype.kind == "b":
        return True
    if dtype.kind == "f":
        return 1.25e4
    return int.from_bytes(b"\x6b" * dtype.itemsize, "little", signed=dtype.kind == "i")


class HostMemory:
    """The bytes of one buffer: a flat NumPy base, the view of it that the argument is, and where the guard cells lie."""

    def __init__(self, argument: Argument) -> None:
        array, layout = argument.array, argument.layout
        size = layout.before + array.size * layout.step + GUARD_CELLS
        self._mark = canary(array.dtype)
        self.base = np.full(size, self._mark, dtype=array.dtype)
        self._untouched = self.base.tobytes()
        item = array.dtype.itemsize
        strides: list[int] = []
        run = layout.step
        for extent in reversed(array.shape):
            strides.insert(0, run)
            run *= max(extent, 1)
        self.shape, self.strides, self.offset = array.shape, tuple(strides), layout.before
        in_bytes = [stride * item for stride in strides]
        self.view = np.ndarray(self.shape, self.base.dtype, self.base, self.offset * item, in_bytes)
        self.view[...] = array

    def guard_intact(self, base: np.ndarray) -> bool:
        """Whether every guard cell of `base` (a copy of this buffer's) still holds the canary."""
        left = base.copy()
        np.ndarray(self.shape, left.dtype, left, self.offset * left.itemsize, self.view.strides)[...] = self._mark
        return bool(left.tobytes() == self._untouched)

    def tensor(self, base: torch.Tensor) -> torch.Tensor:
        """The argument's view of `base`, a flat tensor that holds these bytes."""
        return base.as_strided(self.shape, self.strides, self.offset)
