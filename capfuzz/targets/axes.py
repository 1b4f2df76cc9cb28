"""Axes: the dimensions that are generated, minimised and reported.

An axis knows its simplest value and which values it accepts; strategies and minimiser passes are written against that, not
against a target.
"""

from __future__ import annotations

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
    """One integer a request, in every step: row lengths. All steps have the same number of rows, the batch size."""

    name: str
    least: int = 0

    def validate(self, value: StepValue, field: str) -> None:
        if not isinstance(value, list):
            raise InvalidCaseError(field, f"must be a list of integers, is {value!r}")
        if not value or min(value) >= self.least:
            return
        for index, item in enumerate(value):
            if item < self.least:
                raise InvalidCaseError(f"{field}[{index}]", f"must be at least {self.least}, is {item!r}")


@dataclass(frozen=True)
class StepIntAxis:
    """One integer a step, for example where an indptr starts."""

    name: str
    least: int = 0

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
            stepped_axis.validate(step[stepped_axis.name], field)
            if isinstance(stepped_axis, RowsAxis) and batch(step, stepped_axis) != batch(case.steps[0], stepped_axis):
                raise InvalidCaseError(field, "must have as many rows as steps[0]: the captured batch size is fixed")


def batch(step: dict[str, StepValue], axis: RowsAxis) -> int:
    rows = step[axis.name]
    return len(rows) if isinstance(rows, list) else 0


def _same_names(field: str, given: set[str], wanted: set[str]) -> None:
    for name in sorted(given - wanted):
        raise InvalidCaseError(f"{field}.{name}", f"no such axis; there are: {', '.join(sorted(wanted))}")
    for name in sorted(wanted - given):
        raise InvalidCaseError(f"{field}.{name}", "is missing")
