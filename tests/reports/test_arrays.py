"""Arrays as grids: every element where it belongs, and exactly the differing cells marked."""

from __future__ import annotations

import numpy as np
import pytest

from capfuzz.differential import Mismatch
from capfuzz.reports.arrays import GAP, MOST_COLUMNS, MOST_ROWS, Grid, compared, differing, drawn


def texts(grid: Grid) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in grid.rows]


def mismatch(left: np.ndarray | str, right: np.ndarray | str, captured: np.ndarray | None = None) -> Mismatch:
    return Mismatch("replay 2 (changed inputs 1)", "output", "eager", "replay", left, right, captured)


def test_one_dimension() -> None:
    grid = drawn("indptr", np.array([0, 3, 5], np.int32))
    assert grid.title == "indptr: int32[3]"
    assert grid.columns == ["0", "1", "2"]
    assert texts(grid) == [["0", "3", "5"]]
    assert not grid.has_names


def test_a_scalar_and_nothing() -> None:
    assert texts(drawn("n", np.array(7))) == [["7"]]
    assert drawn("n", np.array(7)).columns == [""]
    assert (drawn("e", np.zeros(0)).columns, drawn("e", np.zeros(0)).rows) == ([], [])
    assert drawn("e", np.zeros((3, 0))).columns == []


def test_more_dimensions() -> None:
    grid = drawn("table", np.arange(6).reshape(2, 3))
    assert texts(grid) == [["0", "1", "2"], ["3", "4", "5"]]
    assert [row.name for row in grid.rows] == ["0", "1"]
    deep = drawn("deep", np.arange(8).reshape(2, 2, 2))
    assert [row.name for row in deep.rows] == ["0,0", "0,1", "1,0", "1,1"]
    assert texts(deep)[2] == ["4", "5"]


def test_what_is_long_has_a_gap_and_both_ends() -> None:
    size = 10 * MOST_COLUMNS
    grid = drawn("long", np.arange(size))
    assert len(grid.columns) == MOST_COLUMNS
    assert grid.columns.count(GAP) == 1
    assert (grid.columns[0], grid.columns[-1]) == ("0", str(size - 1))
    shown = [(head, cell.text) for head, cell in zip(grid.columns, grid.rows[0].cells, strict=True) if not cell.is_gap]
    assert all(head == text for head, text in shown)
    tall = drawn("tall", np.arange(4 * MOST_ROWS).reshape(-1, 1))
    assert len(tall.rows) == MOST_ROWS
    assert tall.rows[-1].cells[0].text == str(4 * MOST_ROWS - 1)


def test_what_has_changed_since_the_capture_is_marked() -> None:
    grid = drawn("x", np.array([1, 5, 3]), np.array([1, 2, 3]))
    assert [cell.changed for cell in grid.rows[0].cells] == [False, True, False]
    assert grid.has_changes
    assert not drawn("x", np.array([1, 2]), np.array([1, 2, 3])).has_changes  # not comparable


def test_two_runs_beside_each_other() -> None:
    shown = compared(mismatch(np.array([0, 3, 5]), np.array([0, 2, 4]), np.array([0, 2, 4])))
    assert shown.where == "output, replay 2 (changed inputs 1)"
    assert shown.summary == "2 of 3 elements differ"
    assert shown.grid is not None
    assert [row.name for row in shown.grid.rows] == ["eager", "replay", "captured inputs gave"]
    assert [[cell.differs for cell in row.cells] for row in shown.grid.rows] == [[False] * 3, [False, True, True], [False] * 3]


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_differing_elements_are_marked(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 8, int(rng.integers(0, 4))))
    left = rng.integers(0, 2, shape)
    right = rng.integers(0, 2, shape)
    grid = compared(mismatch(left, right)).grid
    assert grid is not None
    marked = {name for name, cell in zip(grid.columns, grid.rows[1].cells, strict=True) if cell.differs}
    expected = {",".join(str(int(i)) for i in at) for at in np.argwhere(left != right)}
    if left.size <= MOST_COLUMNS:
        assert marked == expected
    else:
        assert marked
        assert marked <= expected


def test_the_differences_of_a_long_array_are_seen_with_their_neighbours() -> None:
    left = np.zeros(500, np.int64)
    right = left.copy()
    right[[7, 250]] = 9
    grid = compared(mismatch(left, right)).grid
    assert grid is not None
    assert grid.columns == ["0", GAP, "6", "7", "8", GAP, "249", "250", "251", GAP, "499"]
    assert [cell.text for cell in grid.rows[1].cells if cell.differs] == ["9", "9"]


def test_nan_is_equal_to_nan() -> None:
    differs = differing(mismatch(np.array([np.nan, 1.0, np.nan]), np.array([np.nan, np.nan, 2.0])))
    assert differs is not None
    assert differs.tolist() == [False, True, True]


def test_what_has_no_common_shape_is_shown_side_by_side() -> None:
    shown = compared(mismatch(np.array([1, 2]), np.array([1])))
    assert shown.grid is None
    assert [side.title for side in shown.sides if isinstance(side, Grid)] == ["eager: int64[2]", "replay: int64[1]"]
    assert compared(mismatch("torch.int32", "torch.int64")).sides == [("eager", "torch.int32"), ("replay", "torch.int64")]
