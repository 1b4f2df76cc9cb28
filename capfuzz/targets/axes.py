"""Axes: the dimensions that are generated, minimised and reported.

An axis knows its simplest value and which values it accepts; strategies and minimiser passes are written against that, not
against a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from capfuzz.targets.case import Case, InvalidCaseError, StepValue, Value


@dataclass(frozen=True)
class IntAxis:
    """A host integer that is part of what is captured, for example a fold factor."""

    name: str
    simplest: int
    most: int
    common: tuple[int, ...]

    def validate(self, value: Value, field: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not self.simplest <= value <= self.most:
            raise InvalidCaseError(field, f"must be an integer from {self.simplest} to {self.most}, is {value!r}")


@dataclass(frozen=True)
class ChoiceAxis:
    """One of a few names; the first is the simplest."""

    name: str
    common: tuple[str, ...]

    @property
    def simplest(self) -> str:
        return self.common[0]

    def validate(self, value: Value, field: str) -> None:
        if value not in self.common:
            raise InvalidCaseError(field, f"must be one of {', '.join(self.common)}, is {value!r}")


@dataclass(frozen=True)
class RowsAxis:
    """One integer a request, in every step: row lengths. All steps have the same number of rows, the batch size.

    `most` bounds a row; `total` bounds the sum of a step's rows, and may depend on the case's values (a dtype). Both bound what
    is drawn and what a case may hold.
    """

    name: str
    least: int = 0
    most: int = 2**40
    total: int | Callable[[Mapping[str, Value]], int] = 2**62

    def total_of(self, values: Mapping[str, Value]) -> int:
        return self.total(values) if callable(self.total) else self.total

    def validate(self, value: StepValue, field: str, values: Mapping[str, Value]) -> None:
        if not isinstance(value, list):
            raise InvalidCaseError(field, f"must be a list of integers, is {value!r}")
        if value and (min(value) < self.least or max(value) > self.most):
            index, item = next((i, v) for i, v in enumerate(value) if not self.least <= v <= self.most)
            raise InvalidCaseError(f"{field}[{index}]", f"must be from {self.least} to {self.most}, is {item!r}")
        if sum(value) > self.total_of(values):
            raise InvalidCaseError(field, f"must add up to at most {self.total_of(values)}, is {sum(value)}")


@dataclass(frozen=True)
class StepIntAxis:
    """One integer a step, for example where an indptr starts, or how many rows are live.

    `up_to_batch`: it is at most the batch size. `common` are the values that are drawn, besides `least`.
    """

    name: str
    least: int = 0
    common: tuple[int, ...] = (1, 2, 7)
    up_to_batch: bool = False

    def validate(self, value: StepValue, field: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < self.least:
            raise InvalidCaseError(field, f"must be an integer of at least {self.least}, is {value!r}")


FixedAxis = IntAxis | ChoiceAxis
StepAxis = RowsAxis | StepIntAxis


def validate(case: Case, fixed: tuple[FixedAxis, ...], stepped: tuple[StepAxis, ...]) -> None:
    """Raises `InvalidCaseError` naming the field when a case has not exactly these axes with values that they accept."""
    _same_names("case.values", set(case.values), {axis.name for axis in fixed})
    for axis in fixed:
        axis.validate(case.values[axis.name], f"case.values.{axis.name}")
    if not case.steps:
        raise InvalidCaseError("case.steps", "must have at least the captured inputs")
    for index, step in enumerate(case.steps):
        _same_names(f"case.steps[{index}]", set(step), {axis.name for axis in stepped})
        for stepped_axis in stepped:
            field = f"case.steps[{index}].{stepped_axis.name}"
            value = step[stepped_axis.name]
            if isinstance(stepped_axis, RowsAxis):
                stepped_axis.validate(value, field, case.values)
            else:
                stepped_axis.validate(value, field)
            if isinstance(stepped_axis, StepIntAxis) and stepped_axis.up_to_batch and int(str(value)) > _rows_of(step, stepped):
                raise InvalidCaseError(field, f"must be at most the batch size, is {value!r}")
            if isinstance(stepped_axis, RowsAxis) and batch(step, stepped_axis) != batch(case.steps[0], stepped_axis):
                raise InvalidCaseError(field, "must have as many rows as steps[0]: the captured batch size is fixed")


def _rows_of(step: dict[str, StepValue], stepped: tuple[StepAxis, ...]) -> int:
    return max((batch(step, axis) for axis in stepped if isinstance(axis, RowsAxis)), default=0)


def batch(step: dict[str, StepValue], axis: RowsAxis) -> int:
    rows = step[axis.name]
    return len(rows) if isinstance(rows, list) else 0


def _same_names(field: str, given: set[str], wanted: set[str]) -> None:
    for name in sorted(given - wanted):
        raise InvalidCaseError(f"{field}.{name}", f"no such axis; there are: {', '.join(sorted(wanted))}")
    for name in sorted(wanted - given):
        raise InvalidCaseError(f"{field}.{name}", "is missing")
