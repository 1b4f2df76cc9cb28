"""The heat map: two axes that matter varied together, the other ones held at the minimal case.

The lines of `matter` vary one axis at a time, and so cannot tell `batch >= 8` from `batch * fold_factor >= 8`: with batch 8 it
fails for any fold factor. The map judges every pair of values, nearest to the minimal case first, so that one that time has cut
short shows what lies around it.

Which two: those that matter most. Where one alone matters, the other one is that which makes up for it: at a value of the first
for which the case as it is does not fail, some value of the second makes it fail again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import msgspec

from capfuzz.findings.matter import BATCHES_TRIED, resized
from capfuzz.targets.axes import IntAxis
from capfuzz.targets.case import Case, InvalidCaseError, Value
from capfuzz.targets.model import Target

BATCH = "batch"
MOST_VALUES = 8  # of an axis


class Cell(str, Enum):
    """What the case of one cell shows: this fault, another one, none; or why that is not known."""

    FAILS = "fails"
    OTHER = "other"
    HOLDS = "holds"
    NOT_LEGAL = "not_legal"
    NOT_TRIED = "not_tried"


Shown = Callable[[Case], Cell]


class HeatMap(msgspec.Struct, frozen=True):
    """`cells[r][c]` is what the case shows with `row_values[r]` on the axis `rows` and `column_values[c]` on `columns`.

    The minimal case is at `[case_row][case_column]`.
    """

    rows: str
    columns: str
    row_values: list[Value]
    column_values: list[Value]
    cells: list[list[Cell]]
    case_row: int
    case_column: int
    interact: bool | None
    """Whether the fault depends on the two values together, and not on each by itself; None where too few cells are known."""

    @property
    def is_complete(self) -> bool:
        return not any(cell is Cell.NOT_TRIED for row in self.cells for cell in row)


def mattering(target: Target, axes: Mapping[str, str]) -> list[str]:
    """Of the lines of `axes_that_matter` the axes whose value matters; first the one for which the fault shows for the least of
    what was tried, among equals in the order of the lines. Lines that are no axis of the target are left out."""
    known = {BATCH, *(axis.name for axis in target.fixed)}
    shares = {name: share for name, text in axes.items() if name in known and (share := _share_failing(text)) is not None}
    return sorted(shares, key=lambda name: shares[name])


def _share_failing(text: str) -> float | None:
    """From `only 1, 2 (not 0; 3 not legal with this case)`; None for a line that says `any`."""
    if not text.startswith("only "):
        return None
    failing, _, rest = text.removeprefix("only ").rpartition(" (not ")
    fails = 0 if failing == "the value of the case" else len(failing.split(", "))
    return fails / (fails + len(rest.split(";")[0].split(", ")))


def heat_map(target: Target, case: Case, axes: Mapping[str, str], shown: Shown, max_seconds: float) -> HeatMap | str:
    """The map of two axes that matter, within `max_seconds`; a text says why there is none."""
    deadline = time.monotonic() + max_seconds
    grid = _Grid(target, case, shown, lambda: time.monotonic() >= deadline)
    names = mattering(target, axes)[:2]
    if not names:
        return "no axis matters"
    if len(names) == 1:
        second = grid.partner(names[0], [name for name in axes if name != names[0]])
        if second is None:
            return "time ran out" if grid.is_late() else f"of the axes only {names[0]} matters"
        names.append(second)
    elif grid.is_late():
        return "time ran out"
    rows, columns = sorted(names, key=list(axes).index)
    return grid.map(rows, columns)


class _Grid:
    """The cases around the minimal one. No case is judged twice."""

    def __init__(self, target: Target, case: Case, shown: Shown, is_late: Callable[[], bool]) -> None:
        self._target = target
        self._case = case
        self._shown = shown
        self.is_late = is_late
        self._known: dict[str, Cell] = {repr(case): Cell.FAILS}

    def cell(self, changes: Mapping[str, Value]) -> Cell:
        """What the case shows with other values on some axes."""
        case = self._case
        for name, value in changes.items():
            if name != BATCH:
                case = case.with_value(name, value)
        if BATCH in changes:
            case = resized(self._target, case, int(changes[BATCH]))
        key = repr(case)
        if key not in self._known:
            try:
                self._target.feeds(case)
            except InvalidCaseError:
                self._known[key] = Cell.NOT_LEGAL
            else:
                if self.is_late():
                    return Cell.NOT_TRIED
                self._known[key] = self._shown(case)
        return self._known[key]

    def partner(self, name: str, others: Sequence[str]) -> str | None:
        """The first of `others` that makes up for the nearest value of `name` with which the case does not fail."""
        own = _value(self._target, self._case, name)
        values = _values(self._target, self._case, name)
        at = values.index(own)
        by_distance = sorted(values, key=lambda value: abs(values.index(value) - at))
        holds = next((value for value in by_distance if self.cell({name: value}) is Cell.HOLDS), None)
        if holds is None:
            return None
        known = {BATCH, *(axis.name for axis in self._target.fixed)}
        for other in others:
            if other in known:
                for value in reversed(_values(self._target, self._case, other)):
                    if self.cell({name: holds, other: value}) is Cell.FAILS:
                        return other
        return None

    def map(self, rows: str, columns: str) -> HeatMap:
        row_values, column_values = (_values(self._target, self._case, name) for name in (rows, columns))
        row = row_values.index(_value(self._target, self._case, rows))
        column = column_values.index(_value(self._target, self._case, columns))
        cells = [[Cell.NOT_TRIED for _ in column_values] for _ in row_values]
        places = [(r, c) for r in range(len(row_values)) for c in range(len(column_values))]
        for r, c in sorted(places, key=lambda place: abs(place[0] - row) + abs(place[1] - column)):
            changes = {rows: row_values[r], columns: column_values[c]}
            cells[r][c] = Cell.FAILS if (r, c) == (row, column) else self.cell(changes)
        return HeatMap(rows, columns, row_values, column_values, cells, row, column, _interact(cells, row, column))


def _value(target: Target, case: Case, name: str) -> Value:
    return target.batch(case) if name == BATCH else case.values[name]


def _values(target: Target, case: Case, name: str) -> list[Value]:
    """At most `MOST_VALUES` in their order: the case's own, for numbers its neighbours, the ends, then what is tried anyway."""
    own = _value(target, case, name)
    axis = next((axis for axis in target.fixed if axis.name == name), None)
    if axis is not None and not isinstance(axis, IntAxis):
        return _few(list(axis.common), [own])
    least, most = (0, None) if axis is None else (axis.simplest, axis.most)
    number = int(own)
    near = [value for value in (number - 1, number, number + 1) if value >= least and (most is None or value <= most)]
    common = BATCHES_TRIED if axis is None else axis.common
    everything: list[Value] = [*sorted({*common, *near})]
    return _few(everything, near)


def _few(values: list[Value], first: Sequence[Value]) -> list[Value]:
    wanted = list(dict.fromkeys([*first, values[0], values[-1], *values]))[:MOST_VALUES]
    return [value for value in values if value in wanted]


def _interact(cells: Sequence[Sequence[Cell]], row: int, column: int) -> bool | None:
    """Compared with what each axis shows by itself: in the minimal case's column and row."""
    unknown = False
    for r, line in enumerate(cells):
        for c, cell in enumerate(line):
            seen = (cell, cells[r][column], cells[row][c])
            if any(each in (Cell.NOT_TRIED, Cell.OTHER) for each in seen):
                unknown = True
            elif Cell.NOT_LEGAL not in seen:
                if (cell is Cell.FAILS) != (cells[r][column] is Cell.FAILS and cells[row][c] is Cell.FAILS):
                    return True
    return None if unknown else False
