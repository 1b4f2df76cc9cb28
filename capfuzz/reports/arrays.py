"""Arrays drawn as grids of cells: inputs as they are, two runs side by side with the cells that differ marked."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from capfuzz.differential import Mismatch

MOST_COLUMNS = 32
MOST_ROWS = 16
_DIFFERENCES = 8  # of a long array, each shown between its neighbours
_ENDS = 2  # of a long array that is drawn alone: the last elements
GAP = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True)
class ArrayCell:
    """`differs`: it is not what the run in the row above has. `changed`: it is not what the captured inputs have. `is_gap`:
    elements are left out here."""

    text: str
    differs: bool = False
    changed: bool = False
    is_gap: bool = False


@dataclass(frozen=True)
class Row:
    name: str
    cells: list[ArrayCell]


@dataclass(frozen=True)
class Grid:
    """A drawn array: the names of its columns, and its rows. Without columns it has no elements."""

    title: str
    columns: list[str]
    rows: list[Row]

    @property
    def has_names(self) -> bool:
        return any(row.name for row in self.rows)

    @property
    def has_changes(self) -> bool:
        return any(cell.changed for row in self.rows for cell in row.cells)


@dataclass(frozen=True)
class Comparison:
    """Two runs: `grid` has a row each where they have the same shape; else `sides` has what each of them is."""

    where: str
    grid: Grid | None
    sides: list[Grid | tuple[str, str]]
    summary: str


def drawn(name: str, array: np.ndarray, captured: np.ndarray | None = None) -> Grid:
    """`name: dtype[shape]`, a row for every index but the last; what is long is drawn with its middle left out.

    Elements that are not those of `captured` are marked, where that has the same shape.
    """
    title = f"{name}: {array.dtype}[{','.join(map(str, array.shape))}]"
    if array.size == 0:
        return Grid(title, [], [])
    last = array.shape[-1] if array.ndim else 1
    lines = array.reshape(-1, last)
    has_other = captured is not None and captured.shape == array.shape
    changed = (_unlike(captured, array) if captured is not None and has_other else np.zeros(array.shape, bool)).reshape(
        -1, last
    )
    columns, rows = _ends(lines.shape[1], MOST_COLUMNS), _ends(lines.shape[0], MOST_ROWS)
    heads = [GAP if c is None else str(c) if array.ndim else "" for c in columns]
    drawn_rows = []
    for r in rows:
        if r is None:
            drawn_rows.append(Row(GAP, [_gap() for _ in columns]))
        else:
            cells = [_gap() if c is None else ArrayCell(_text(lines[r, c]), changed=bool(changed[r, c])) for c in columns]
            drawn_rows.append(Row(_index(r, array.shape[:-1]), cells))
    return Grid(title, heads, drawn_rows)


def _gap() -> ArrayCell:
    return ArrayCell(GAP, is_gap=True)


def _text(value: Any) -> str:
    return str(value.item())


def _unlike(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Element by element, NaN being equal to NaN."""
    differs = np.asarray(left != right)
    if left.dtype.kind in "fc" and right.dtype.kind in "fc":
        differs = differs & ~(np.isnan(left) & np.isnan(right))
    return differs


def _ends(size: int, most: int) -> list[int | None]:
    if size <= most:
        return list(range(size))
    return [*range(most - _ENDS - 1), None, *range(size - _ENDS, size)]


def differing(mismatch: Mismatch) -> np.ndarray | None:
    """Where the two runs differ, one bool an element, NaN being equal to NaN; None where they are not arrays of one shape."""
    left, right = mismatch.expected, mismatch.actual
    if isinstance(left, str) or isinstance(right, str) or left.shape != right.shape:
        return None
    return _unlike(left, right)


def compared(mismatch: Mismatch) -> Comparison:
    """The two runs of a mismatch; beside them what the captured inputs gave, where that is of use."""
    left, right = mismatch.expected, mismatch.actual
    where = f"{mismatch.path}, {mismatch.where}"
    differs = differing(mismatch)
    if differs is None or isinstance(left, str) or isinstance(right, str):
        names = (mismatch.expected_name, mismatch.actual_name)
        sides = [
            (name, side) if isinstance(side, str) else drawn(name, side)
            for name, side in zip(names, (left, right), strict=True)
        ]
        return Comparison(where, None, sides, f"they differ in {mismatch.note}" if mismatch.note else "")
    flat = differs.ravel()
    positions = _positions(flat)
    captured = mismatch.captured if mismatch.captured is not None and mismatch.captured.shape == left.shape else None
    runs = [(mismatch.expected_name, left), (mismatch.actual_name, right)]
    if captured is not None:
        runs.append(("captured inputs gave", captured))
    rows = []
    for number, (name, values) in enumerate(runs):
        marked = flat if number == 1 else np.zeros_like(flat)
        cells = [_gap() if at is None else ArrayCell(_text(values.ravel()[at]), bool(marked[at])) for at in positions]
        rows.append(Row(name, cells))
    heads = [GAP if at is None else _index(at, left.shape) for at in positions]
    return Comparison(where, Grid("", heads, rows), [], f"{int(flat.sum())} of {flat.size} elements differ")


def _index(at: int, shape: tuple[int, ...]) -> str:
    return ",".join(str(int(i)) for i in np.unravel_index(at, shape)) if shape else ""


def _positions(differs: np.ndarray) -> list[int | None]:
    """All of a short array; of a long one its ends and the first differences with their neighbours. None stands for a gap."""
    size = differs.size
    if size <= MOST_COLUMNS:
        return list(range(size))
    first = [int(at) for at in np.flatnonzero(differs)[:_DIFFERENCES]]
    chosen = {0, size - 1, *(near for at in first for near in (at - 1, at, at + 1) if 0 <= near < size)}
    positions: list[int | None] = [0]
    for before, at in pairwise(sorted(chosen)):
        positions += [at] if at == before + 1 else [None, at]
    return positions
