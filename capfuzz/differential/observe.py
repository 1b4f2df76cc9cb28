"""What a run leaves to be seen: outputs, device buffers, host buffers, host scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from capfuzz.devices.base import Buffer, Device


class Leaf(NamedTuple):
    """One output: its values (a host copy), its dtype and whether it lies on the device. A host scalar has no dtype."""

    array: np.ndarray
    dtype: str
    on_device: bool


class Observed(NamedTuple):
    """Everything that one run left: `outputs` by path, `buffers` (whole bases, guard zones included) by argument name."""

    outputs: dict[str, Leaf]
    buffers: dict[str, np.ndarray]


def observe(device: Device, result: Any, buffers: Mapping[str, Buffer]) -> Observed:
    found = flat(result)
    tensors = [value for value in found.values() if isinstance(value, torch.Tensor)]
    arrays = device.read_all(tensors, list(buffers.values()))
    return Observed(_leaves(device, found, iter(arrays)), dict(zip(buffers, arrays[len(tensors) :], strict=True)))


def outputs_of(device: Device, result: Any) -> dict[str, Leaf]:
    """Flattens a result (tensors, scalars, None, and lists, tuples and dicts of them) into leaves by path."""
    found = flat(result)
    return _leaves(device, found, iter([device.read(value) for value in found.values() if isinstance(value, torch.Tensor)]))


def _leaves(device: Device, found: Mapping[str, Any], arrays: Iterator[np.ndarray]) -> dict[str, Leaf]:
    return {path: _leaf(device, value, arrays) for path, value in found.items()}


def flat(value: Any, path: str = "output") -> dict[str, Any]:
    """The tensors, arrays and scalars of a result by path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, Mapping):
        return {p: leaf for key, item in value.items() for p, leaf in flat(item, f"{path}[{key!r}]").items()}
    if isinstance(value, (list, tuple)):
        return {p: leaf for index, item in enumerate(value) for p, leaf in flat(item, f"{path}[{index}]").items()}
    return {path: value}


def _leaf(device: Device, value: Any, arrays: Iterator[np.ndarray]) -> Leaf:
    if isinstance(value, torch.Tensor):
        return Leaf(next(arrays), str(value.dtype), device.on_device(value))
    if isinstance(value, np.ndarray):
        return Leaf(value.copy(), _numpy_name(value.dtype), False)
    return Leaf(np.array(value), f"python.{type(value).__name__}", False)


@cache
def _numpy_name(dtype: np.dtype) -> str:
    """NumPy makes the name in Python each time that it is asked for."""
    return f"numpy.{dtype}"


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    """Exact; NaN equals NaN."""
    if a.shape != b.shape:
        return False
    if a.dtype == b.dtype and a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind in "fc":
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool((a == b).all())


def same(a: Observed, b: Observed) -> bool:
    """The fast answer; `classify` says what differs."""
    if a.outputs.keys() != b.outputs.keys():
        return False
    for path, left in a.outputs.items():
        right = b.outputs[path]
        if left.dtype != right.dtype or left.on_device != right.on_device or not same_values(left.array, right.array):
            return False
    return all(same_values(base, b.buffers[name]) for name, base in a.buffers.items())
