"""Values for cases: dense where faults live, cheap to draw.

Engines draw a *kind* and a *seed*; NumPy expands them into explicit values. Drawing row lengths one by one costs more and
shrinks worse (DESIGN: the case holds explicit values, and our own passes minimise those).
"""

from __future__ import annotations

import numpy as np

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
# One kind of change, or two in a row. Sampled whole: `st.lists` would double the time that a case takes to draw.
CHANGES = tuple((kind,) for kind in CHANGE_KINDS) + tuple((a, b) for a in CHANGE_KINDS for b in CHANGE_KINDS)


def row_lengths(kind: str, batch: int, limit: int, rng: np.random.Generator) -> list[int]:
    """`batch` row lengths of one kind; their sum stays within `limit`."""
    if batch == 0:
        return []
    most = max(1, min(64, limit // batch))
    rows = rng.integers(0, most + 1, batch)
    if kind == "uniform":
        rows[:] = rng.integers(1, most + 1)
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
    return [int(row) for row in rows]


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
