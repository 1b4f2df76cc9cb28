"""What a kernel asserts on the device: an index that lies outside.

The CPU's kernels look at every index and raise; the device's assert, which the host learns as an error of the device (an H200
says so of `index`, `index_select`, `gather` and their like). What depends on shapes alone is refused by the host on both.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from capfuzz.devices.sim.ops import Op
from capfuzz.devices.sim.tensor import replaced

_OUTSIDE = re.compile(r"index .*out of (range|bounds)|out of bounds for dimension|out of range: tried to access index")


def asserted(error: BaseException) -> Exception | None:
    """The device's error in the place of a CPU kernel's about the values of an index; None for any other error.

    At a replay shapes are what they were, so it is the values that are wrong.
    """
    if isinstance(error, (IndexError, RuntimeError)) and _OUTSIDE.search(str(error)):
        return torch.AcceleratorError("CUDA error: device-side assert triggered")
    return None


def asserted_in(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> Exception | None:
    """As `asserted`, of an op that ran with these arguments: with tensors of the same shapes and no values it is accepted."""
    assertion = asserted(error)
    if assertion is None:
        return None
    try:
        without_values(op, args, kwargs)
    except Exception:
        return None
    return assertion


def without_values(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the op gives for tensors without values: a result without values."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        named = {name: replaced(value, _to_meta) for name, value in kwargs.items()}
        return op.call(*(replaced(value, _to_meta) for value in args), **named)


def unknown_result(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a capture has of an op whose index lies outside: memory that nothing has written."""
    if op.mutated:
        return args[0]
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return replaced(without_values(op, args, kwargs), lambda meta: torch.empty_like(meta, device="cpu"))


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.Tensor.as_subclass(tensor.detach(), torch.Tensor)
    return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device="meta")
