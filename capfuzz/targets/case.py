"""A case: concrete values for every axis, the inputs that are captured and the changed inputs of each replay.

A case is data. It serialises to explicit values, and the same case runs on every device and every implementation.
"""

from __future__ import annotations

import msgspec

from capfuzz.differential import SIMPLEST, Schedule

Value = int | str
StepValue = int | list[int]


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`values` holds one value for each axis that stays the same through a case; `steps[0]` holds the inputs that are captured,
    each later step one set of changed inputs, with one value (or one list of values, a row each) for each axis that changes.
    `schedule` says how the case is driven."""

    values: dict[str, Value]
    steps: list[dict[str, StepValue]]
    schedule: Schedule = SIMPLEST

    def with_value(self, axis: str, value: Value) -> Case:
        return Case({**self.values, axis: value}, self.steps, self.schedule)

    def with_steps(self, steps: list[dict[str, StepValue]]) -> Case:
        return Case(self.values, steps, self.schedule)

    def with_schedule(self, schedule: Schedule) -> Case:
        return Case(self.values, self.steps, schedule)

    def with_step_value(self, step: int, axis: str, value: StepValue) -> Case:
        steps = list(self.steps)
        steps[step] = {**steps[step], axis: value}
        return Case(self.values, steps, self.schedule)


class InvalidCaseError(ValueError):
    """A case that its target does not accept: `field` says which value, the text says why."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
