"""Poison: what memory holds that nobody wrote.

Eager and capture are given different values, so an element that an op leaves unwritten differs between the two every time
and not by luck. Values are finite (a NaN would compare equal to a NaN) and large enough to be no plausible offset.
"""

from __future__ import annotations

import torch

EAGER = 0
CAPTURE = 1

_VALUES: dict[torch.dtype, tuple[float | int | bool, float | int | bool]] = {
    torch.bool: (True, False),
    torch.uint8: (0xA5, 0x5B),
    torch.int8: (-91, 91),
    torch.int16: (-23_131, 23_131),
    torch.int32: (-1_515_870_811, 1_515_870_812),
    torch.int64: (-6_510_615_555_426_900_571, 6_510_615_555_426_900_572),
    torch.float16: (-23_136.0, 23_136.0),
    torch.bfloat16: (-2.5e30, 2.5e30),
    torch.float32: (-2.5e30, 2.5e30),
    torch.float64: (-2.5e300, 2.5e300),
    torch.complex64: (-2.5e30, 2.5e30),
    torch.complex128: (-2.5e300, 2.5e300),
    # the float8 family: small range
    **{getattr(torch, name): (-13.0, 13.0) for name in dir(torch) if name.startswith("float8_e") and "e8m0" not in name},
}


def value(dtype: torch.dtype, side: int) -> float | int | bool | None:
    """The poison of `dtype` for `EAGER` or `CAPTURE`; None where the dtype has none (quantised, packed)."""
    pair = _VALUES.get(dtype)
    return None if pair is None else pair[side]


CAPTURE_VALUES = {dtype: pair[CAPTURE] for dtype, pair in _VALUES.items()}


def torch_fills_memory() -> bool:
    """Under the deterministic flag PyTorch itself fills what `torch.empty` returns."""
    return torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()


def fill(tensor: torch.Tensor, side: int) -> None:
    """Poisons `tensor` in place. Call it with no mode active."""
    poison = value(tensor.dtype, side)
    if poison is not None and tensor.numel():
        tensor.fill_(poison)
