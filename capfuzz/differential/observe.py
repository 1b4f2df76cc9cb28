"""What a run leaves to be seen: outputs, device buffers, host buffers, host scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from capfuzz.devices.base import Buffer, Device


@dataclass(frozen=True, slots=True)
class Leaf:
    """One output: its values (a host copy), its dtype and whether it lies on the device. A host scalar has no dtype."""

    array: np.ndarray
    dtype: str
    on_device: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one run left: `outputs` by path, `buffers` (whole bases, guard zones included) by argument name."""

    outputs: dict[str, Leaf]
    buffers: dict[str, np.ndarray]


def outputs_of(device: Device, result: Any, path: str = "output") -> dict[str, Leaf]:
    """Flattens a result (tensors, scalars, None, and lists, tuples and dicts of them) into leaves by path."""
    if isinstance(result, torch.Tensor):
        return {path: Leaf(device.read(result), str(result.dtype), device.on_device(result))}
    if isinstance(result, Mapping):
        leaves: dict[str, Leaf] = {}
        for key, value in result.items():
            leaves |= outputs_of(device, value, f"{path}[{key!r}]")
        return leaves
    if isinstance(result, (list, tuple)):
        leaves = {}
        for index, value in enumerate(result):
            leaves |= outputs_of(device, value, f"{path}[{index}]")
        return leaves
    if isinstance(result, np.ndarray):
        return {path: Leaf(result.copy(), f"numpy.{result.dtype}", False)}
    return {path: Leaf(np.array(result), f"python.{type(result).__name__}", False)}


def observe(device: Device, result: Any, buffers: Mapping[str, Buffer]) -> Observed:
    return Observed(outputs_of(device, result), {name: buffer.snapshot() for name, buffer in buffers.items()})


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    """Exact; NaN equals NaN."""
    if a.shape != b.shape:
        return False
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
