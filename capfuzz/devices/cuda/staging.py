"""Pinned memory through which arrays go to the device and tensors come back, many of them for one wait.

A copy between the device and pageable memory waits for itself; one between the device and pinned memory does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from capfuzz.devices.tracer import host_values

FIRST_BYTES = 1 << 18
MOST_BYTES = 1 << 22  # of one array: a larger one pays little for its own wait, and would be pinned for good
MOST_VIEWS = 4096
_ALIGN = 16  # the largest element, complex128
_NUMPY: dict[torch.dtype, np.dtype] = {
    dtype: torch.empty(0, dtype=dtype).numpy().dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
_TORCH = {dtype: torch_dtype for torch_dtype, dtype in _NUMPY.items()}


class _Arena:
    """Pinned bytes, handed out from the front."""

    def __init__(self) -> None:
        self._make(FIRST_BYTES)

    def _make(self, size: int) -> None:
        """PyTorch gives the old bytes out again only when the copies from and to them are done."""
        self._size = size
        self._bytes = torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        self._array = self._bytes.numpy()
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self._views: dict[tuple[torch.dtype, int, int], torch.Tensor] = {}
        self.used = 0

    def left(self) -> int:
        return self._size - self.used

    def grow(self, size: int) -> None:
        if size > self._size:
            self._make(2 * size)

    def take(self, nbytes: int) -> int:
        """The offset of the next bytes. The caller sees to it that there are enough."""
        offset = self.used
        self.used = offset + -(-nbytes // _ALIGN) * _ALIGN
        return offset

    def tensor(self, dtype: torch.dtype, offset: int, numel: int) -> torch.Tensor:
        view = self._views.get((dtype, offset, numel))  # the same few come again and again
        if view is None:
            typed = self._typed.get(dtype)
            if typed is None:
                typed = self._typed[dtype] = self._bytes.view(dtype)
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            view = self._views[dtype, offset, numel] = typed.as_strided((numel,), (1,), offset // dtype.itemsize)
        return view

    def array(self, shape: tuple[int, ...], dtype: np.dtype, offset: int) -> np.ndarray:
        array: np.ndarray = np.ndarray(shape, dtype, self._array, offset)
        return array


class Staging:
    """Both ways. `wait` waits for all that the device has to do; `pending` says that a copy to it may still be under way."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self.pending = False
        self._up = _Arena()
        self._down = _Arena()

    def on_device(self, array: np.ndarray, device: torch.device) -> torch.Tensor:
        """A new tensor with the values of a flat array."""
        if array.dtype not in _TORCH:
            return torch.from_numpy(array).to(device)
        tensor = torch.empty(array.size, dtype=_TORCH[array.dtype], device=device)
        self.upload(array, tensor)
        return tensor

    def upload(self, array: np.ndarray, tensor: torch.Tensor) -> None:
        """Begins to copy a flat array into a flat tensor of its size and dtype; the array may change at once."""
        if array.nbytes > MOST_BYTES or array.dtype not in _TORCH:
            tensor.copy_(torch.from_numpy(array))
            return
        arena = self._up
        if array.nbytes + _ALIGN > arena.left():
            self._wait()  # for the copies from the bytes that are handed out again
            arena.used = 0
            arena.grow(array.nbytes + _ALIGN)
        offset = arena.take(array.nbytes)
        arena.array(array.shape, array.dtype, offset)[...] = array
        tensor.copy_(arena.tensor(tensor.dtype, offset, array.size), non_blocking=True)
        self.pending = True

    def download(self, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
        """`host_values` of each, after one wait. Raises what the device has to say of all that it did before."""
        sources = [_plain(tensor) for tensor in tensors]
        arena = self._down
        arena.used = 0
        arena.grow(sum(source.nbytes + _ALIGN for source in sources if source is not None))
        offsets: list[int] = []
        for source in sources:
            if source is None:
                offsets.append(-1)
                continue
            numel = source.numel()
            offset = arena.take(source.nbytes)
            target = arena.tensor(source.dtype, offset, numel)
            (target if source.dim() == 1 else target.view(source.shape)).copy_(source, non_blocking=True)
            offsets.append(offset)
        self._wait()
        return [
            host_values(tensor) if source is None else arena.array(source.shape, _NUMPY[source.dtype], offset).copy()
            for tensor, source, offset in zip(tensors, sources, offsets, strict=True)
        ]


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor as its bytes can be copied; None where there is more to it, or nothing."""
    if tensor.__class__ is not torch.Tensor or not tensor.is_cuda or tensor.dtype not in _NUMPY:
        return None
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or not 0 < tensor.nbytes <= MOST_BYTES:
        return None
    return tensor.detach() if tensor.requires_grad else tensor
