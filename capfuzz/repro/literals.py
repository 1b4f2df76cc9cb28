"""Arrays as Python expressions, short ones: runs of one value and of equal steps are written as such."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

SHORT = 8  # elements that are written out whatever they are
WIDTH = 120


def literal(values: Any) -> str:
    """A scalar, or nested lists of scalars, as an expression."""
    if not isinstance(values, list):
        return _scalar(values)
    if values and isinstance(values[0], list):
        return f"[{', '.join(map(literal, values))}]"
    if len(values) <= SHORT:
        return f"[{', '.join(map(_scalar, values))}]"
    return " + ".join(_pieces(values))


def array_literal(array: np.ndarray) -> str:
    """The values of an array: what `torch.tensor` makes the array of, but for the dtype. An empty one keeps its shape."""
    if array.size == 0 and array.ndim > 1:
        return f"torch.zeros({', '.join(map(str, array.shape))})"
    return literal(array.tolist())


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) and value.isidentifier() else repr(value)


def _pieces(values: Sequence[Any]) -> list[str]:
    """Lists that make up `values` one behind the other."""
    pieces: list[str] = []
    plain: list[str] = []

    def end_plain() -> None:
        if plain:
            pieces.append(f"[{', '.join(plain)}]")
            plain.clear()

    at = 0
    while at < len(values):
        length = _run(values, at)
        if length < SHORT:
            plain.append(_scalar(values[at]))
            at += 1
            continue
        end_plain()
        first, step = values[at], values[at + 1] - values[at]
        if step:
            stride = "" if step == 1 else f", {step}"
            pieces.append(f"list(range({first}, {first + length * step}{stride}))")
        else:
            pieces.append(f"[{_scalar(first)}] * {length}")
        at += length
    end_plain()
    return pieces


def _run(values: Sequence[Any], at: int) -> int:
    """How many values from `at` on are one value, or integers of equal steps."""
    if at + 1 >= len(values):
        return 1
    first = values[at]
    if isinstance(first, bool) or not isinstance(first, int):
        end = at + 1
        while end < len(values) and values[end] == first:
            end += 1
        return end - at
    step, end = values[at + 1] - first, at + 2
    while end < len(values) and values[end] - values[end - 1] == step:
        end += 1
    return end - at
