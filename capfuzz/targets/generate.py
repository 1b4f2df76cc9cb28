"""Values for cases: dense where faults live, cheap to draw.

Engines draw a *kind* and a *seed*; NumPy expands them into explicit values. Drawing row lengths one by one costs more and
shrinks worse (DESIGN: the case holds explicit values, and our own passes minimise those).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from capfuzz.targets.axes import FixedAxis, RowsAxis, StepAxis, StepIntAxis
from capfuzz.targets.case import Case, StepValue, Value

# Zero, one, two, powers of two and their neighbours, odd primes, common bucket sizes; large ones are drawn apart, rarely.
BATCHES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 37, 63, 64, 65, 127, 128, 129)
LARGE_BATCHES = (256, 512, 1024, 2048)

ROW_KINDS = (
    "ragged",
    "uniform",
    "all_zero",
    "all_one",
    "first_empty",
    "last_empty",
    "inner_empty",
    "one_giant",
    "near_limit",
)
CHANGE_KINDS = ("other_values", "other_shape", "fewer_rows", "all_empty", "more_then_fewer")
# One kind of change, or two in a row.
CHANGES = tuple((kind,) for kind in CHANGE_KINDS) + tuple((a, b) for a in CHANGE_KINDS for b in CHANGE_KINDS)


def choices(*options: Sequence[Any]) -> SearchStrategy[tuple[Any, ...]]:
    """One value of each of `options`, each as likely as the next, and a seed for NumPy: an integer below 2**16.

    All of it is one draw, of two bytes for each value. Hypothesis takes the same time over a draw whatever is drawn, and where
    several draws look alike it also tries copies of one in the place of another: a tuple of eight costs three times as much.
    """
    layout = struct.Struct(f">{len(options) + 1}H")

    def decode(data: bytes) -> tuple[Any, ...]:
        *numbers, seed = layout.unpack(data)
        return (*(values[number * len(values) >> 16] for values, number in zip(options, numbers, strict=True)), seed)

    return st.binary(min_size=layout.size, max_size=layout.size).map(decode)


def row_lengths(kind: str, batch: int, limit: int, rng: np.random.Generator, typical: int = 64) -> list[int]:
    """`batch` row lengths of one kind; their sum stays within `limit`, most rows within `typical`."""
    if batch == 0:
        return []
    most = max(1, min(typical, limit // batch))
    rows = rng.integers(0, most + 1, batch)
    if limit < batch:
        rows[limit:] = 0
    if kind == "uniform":
        rows[:] = min(int(rng.integers(1, most + 1)), limit // batch)
    elif kind == "all_zero":
        rows[:] = 0
    elif kind == "all_one":
        rows[:] = min(1, limit // batch)
    elif kind == "first_empty":
        rows[: 1 + batch // 4] = 0
    elif kind == "last_empty":
        rows[batch - 1 - batch // 4 :] = 0
    elif kind == "inner_empty":
        rows[batch // 3 : batch // 3 + 1 + batch // 3] = 0
    elif kind in ("one_giant", "near_limit"):
        spare = limit - int(rows.sum())
        giant = spare if kind == "near_limit" else min(spare, 1 << 20)
        rows[int(rng.integers(0, batch))] += max(0, giant)
    lengths: list[int] = rows.tolist()
    return lengths


def changed_rows(change: str, kind: str, batch: int, limit: int, rng: np.random.Generator) -> list[list[int]]:
    """The row lengths of the steps of one kind of change (`more_then_fewer` is two steps)."""
    if change == "all_empty":
        return [[0] * batch]
    if change == "other_values":
        return [row_lengths(kind, batch, limit, rng)]
    other = ROW_KINDS[int(rng.integers(0, len(ROW_KINDS)))]
    full = row_lengths(other, batch, limit, rng)
    if change == "other_shape":
        return [full]
    live = int(rng.integers(0, batch)) if batch else 0
    fewer = row_lengths("ragged", live, limit, rng) + [0] * (batch - live)
    return [fewer] if change == "fewer_rows" else [full, fewer]


def cases_of(fixed: Sequence[FixedAxis], stepped: Sequence[StepAxis]) -> SearchStrategy[Case]:
    """Cases from the axes alone: every fixed axis from its common values, rows by kind, steps by kinds of change."""
    rows = [axis for axis in stepped if isinstance(axis, RowsAxis)]
    batches = BATCHES * 4 + LARGE_BATCHES if rows else (0,)
    drawn = choices(batches, ROW_KINDS, CHANGES, *(axis.common for axis in fixed))
    return drawn.map(_expander(fixed, stepped))


def _expander(fixed: Sequence[FixedAxis], stepped: Sequence[StepAxis]) -> Callable[[tuple[Any, ...]], Case]:
    names = [axis.name for axis in fixed]

    def expand(drawn: tuple[Any, ...]) -> Case:
        batch, kind, changes, *drawn_values, seed = drawn
        values: dict[str, Value] = dict(zip(names, drawn_values, strict=True))
        rng = np.random.default_rng(seed)
        columns: dict[str, list[StepValue]] = {}
        for axis in stepped:
            if isinstance(axis, RowsAxis):
                columns[axis.name] = _rows_of(axis, axis.total_of(values), batch, kind, changes, rng)
        steps = max((len(column) for column in columns.values()), default=1 + len(changes))
        for axis in stepped:
            if isinstance(axis, StepIntAxis):
                columns[axis.name] = [_integer_of(axis, batch, rng) for _ in range(steps)]
        return Case(values, [{name: column[step] for name, column in columns.items()} for step in range(steps)])

    return expand


def _rows_of(
    axis: RowsAxis, total: int, batch: int, kind: str, changes: tuple[str, ...], rng: np.random.Generator
) -> list[StepValue]:
    """One list of rows a step. Lengths are drawn above the axis' least value."""
    limit = max(0, min(total, axis.most * max(batch, 1)) - axis.least * batch)
    steps = [row_lengths(kind, batch, limit, rng)]
    for change in changes:
        steps += changed_rows(change, kind, batch, limit, rng)
    return [[min(axis.most, axis.least + row) for row in rows] for rows in steps]


def _integer_of(axis: StepIntAxis, batch: int, rng: np.random.Generator) -> int:
    if axis.up_to_batch:  # the whole batch, one less, or any
        anywhere = int(rng.integers(axis.least, max(axis.least, batch) + 1))
        return int(rng.choice([batch, max(axis.least, batch - 1), anywhere]))
    return int(rng.choice([axis.least, axis.least, *axis.common]))
