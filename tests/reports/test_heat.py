"""The heat map: which two axes, what each cell shows, whether they interact; and when there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from capfuzz.findings.heat import MOST_VALUES, Cell, HeatMap, heat_map, mattering
from capfuzz.findings.matter import axes_that_matter
from capfuzz.findings.minimise import minimise
from capfuzz.targets import Case, get_target

TARGET = get_target("fold_indptr")
FOLD, BATCH = "fold_factor", "batch"
Fails = Callable[[int, int, dict[str, Any]], bool]


def case(batch: int, fold: int, **values: str) -> Case:
    step: dict[str, int | list[int]] = {"lengths": [1] * batch, "start": 0}
    return Case({"fold_factor": fold, "dtype": "int32", "layout": "contiguous", **values}, [step])


def asked(fails: Fails) -> Callable[[Case], bool]:
    return lambda each: fails(TARGET.batch(each), int(each.values[FOLD]), dict(each.values))


def mapped(fails: Fails, begin: Case, seconds: float = 60.0) -> tuple[HeatMap | str, list[Case]]:
    """The map of the minimal case of a made-up fault, and the cases that were judged for it."""
    still_fails = asked(fails)
    best = minimise(TARGET, begin, still_fails).case
    judged: list[Case] = []

    def shown(each: Case) -> Cell:
        judged.append(each)
        return Cell.FAILS if still_fails(each) else Cell.HOLDS

    return heat_map(TARGET, best, axes_that_matter(TARGET, best, still_fails), shown, seconds), judged


def told(heat: HeatMap, fails: Fails) -> None:
    """Every cell is what the fault says of its values."""
    assert {heat.rows, heat.columns} == {BATCH, FOLD}
    assert (heat.rows, heat.columns) == (BATCH, FOLD)  # in the order of the lines
    for row, cells in zip(heat.row_values, heat.cells, strict=True):
        for column, cell in zip(heat.column_values, cells, strict=True):
            assert cell is (Cell.FAILS if fails(int(row), int(column), {}) else Cell.HOLDS), (row, column)


@pytest.mark.parametrize(("begin", "minimal"), [((37, 16), (1, 8)), ((37, 1), (8, 1))])
def test_a_fault_of_two_axes_together_is_seen(begin: tuple[int, int], minimal: tuple[int, int]) -> None:
    """From `(8, 1)` too, where by the lines the batch alone seems to matter."""

    def fails(batch: int, fold: int, values: Any) -> bool:
        return batch * fold >= 8

    heat, judged = mapped(fails, case(*begin))
    assert isinstance(heat, HeatMap)
    assert heat.interact is True
    told(heat, fails)
    assert len({repr(each) for each in judged}) == len(judged), "no case is judged twice"
    assert max(len(heat.row_values), len(heat.column_values)) <= MOST_VALUES
    assert (heat.row_values[heat.case_row], heat.column_values[heat.case_column]) == minimal


def test_two_axes_that_each_have_their_own_limit_do_not_interact() -> None:
    def fails(batch: int, fold: int, values: Any) -> bool:
        return batch >= 4 and fold >= 3

    heat, _ = mapped(fails, case(37, 16))
    assert isinstance(heat, HeatMap)
    assert heat.interact is False
    told(heat, fails)
    assert {3, 4, 5} <= set(heat.row_values), "the values beside the minimal case's are tried"


def test_where_no_axis_or_one_matters_there_is_no_map() -> None:
    assert mapped(lambda batch, fold, values: True, case(37, 16))[0] == "no axis matters"
    assert mapped(lambda batch, fold, values: batch >= 3, case(37, 16))[0] == "of the axes only batch matters"
    assert mapped(lambda batch, fold, values: values["layout"] == "strided", case(2, 2, layout="strided"))[0] == (
        "of the axes only layout matters"
    )


def test_the_two_that_matter_most_are_chosen() -> None:
    axes = {
        "batch": "only 1, 2, 8, 37 (not 0)",
        "fold_factor": "only 16 (not 1, 2, 3, 4, 5, 8)",
        "dtype": "any (tried int64; int32 not legal with this case)",
        "layout": "only the value of the case (not contiguous, offset; column not legal with this case)",
        "replays": "needs no changed inputs",
        "schedule": "only cold (not warm)",
    }
    assert mattering(TARGET, axes) == ["layout", "fold_factor", "batch"]
    heat = heat_map(TARGET, case(1, 16, layout="strided"), axes, lambda each: Cell.HOLDS, 60.0)
    assert isinstance(heat, HeatMap)
    assert (heat.rows, heat.columns) == ("fold_factor", "layout")


def test_what_is_not_legal_or_another_fault_is_told_apart() -> None:
    axes = {"batch": "only 1 (not 0)", "fold_factor": "only 2000 (not 1)"}
    heat = heat_map(TARGET, case(1, 1024), axes, lambda each: Cell.OTHER, 60.0)
    assert isinstance(heat, HeatMap)
    assert 1025 not in heat.column_values, "an axis has a most"
    assert heat.interact is None, "another fault may hide this one"
    giant = Case({"fold_factor": 1, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [2**31 - 2], "start": 0}])
    legal = heat_map(TARGET, giant, axes, lambda each: Cell.HOLDS, 60.0)
    assert isinstance(legal, HeatMap)
    assert {cell for row in legal.cells for cell in row} == {Cell.FAILS, Cell.HOLDS, Cell.NOT_LEGAL}


def test_time_that_runs_out_leaves_the_cells_around_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    axes = {"batch": "only 8 (not 0)", "fold_factor": "only 4 (not 1)"}

    def shown(each: Case) -> Cell:
        now[0] += 1.0
        return Cell.FAILS

    heat = heat_map(TARGET, case(8, 4), axes, shown, 4.0)
    assert isinstance(heat, HeatMap)
    row, column = heat.case_row, heat.case_column
    tried = {(r, c) for r, cells in enumerate(heat.cells) for c, cell in enumerate(cells) if cell is not Cell.NOT_TRIED}
    assert tried == {(row, column), (row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)}
    assert heat.interact is None
    assert heat_map(TARGET, case(8, 4), axes, shown, 0.0) == "time ran out"
    assert heat_map(TARGET, case(8, 4), {"batch": "only 8 (not 0)"}, shown, -1.0) == "time ran out"
