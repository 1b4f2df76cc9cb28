"""Which schedules are drawn, how often, and what a target gives them: the inputs of another graph, a larger batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from capfuzz.differential import Schedule
from capfuzz.targets.axes import FixedAxis, RowsAxis, StepAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError, StepValue, Value

# Of about 256: one cold start, which costs a process; some that cost as much as two cases; the rest is as cheap as can be.
_SIMPLE = 208
_COLD = 1
_OTHERS: tuple[tuple[int, Schedule], ...] = (
    (8, Schedule(warm_ups=2)),
    (3, Schedule(warm_ups=3)),
    (6, Schedule(second="twin")),
    (5, Schedule(second="bucket")),
    (3, Schedule(second="twin", second_dies=True, between="churn")),
    (2, Schedule(second="bucket", second_dies=True)),
    (3, Schedule(between="churn")),
    (4, Schedule(between="larger")),
    (2, Schedule(between="both")),
    (5, Schedule(eager_between=True)),
    (4, Schedule(eager_layout="contiguous")),
    (1, Schedule(warm_ups=2, second="bucket", between="both", eager_between=True)),
)
_VALUE = 4  # each axis of the target in turn


def schedules_of(fixed: Sequence[FixedAxis]) -> SearchStrategy[Schedule]:
    """Schedules for a target with these axes; most are the simplest."""
    drawn = [Schedule()] * _SIMPLE + [Schedule(warm_ups=0)] * _COLD
    for count, schedule in _OTHERS:
        drawn += [schedule] * count
    of_value = [Schedule(second="value", axis=axis.name) for axis in fixed if len(axis.common) > 1]
    drawn += (of_value * _VALUE)[: max(_VALUE, len(of_value))]
    return st.sampled_from(drawn)


def validate_schedule(schedule: Schedule, fixed: Sequence[FixedAxis]) -> None:
    """Raises `InvalidCaseError` for a schedule that names no axis of the target where it needs one."""
    names = [axis.name for axis in fixed]
    if schedule.second == "value" and schedule.axis not in names:
        raise InvalidCaseError("case.schedule.axis", f"must be one of {', '.join(names)}, is {schedule.axis!r}")


def second_of(case: Case, fixed: Sequence[FixedAxis], stepped: Sequence[StepAxis]) -> list[Case]:
    """What the other graph may be captured with, best first: the last step's inputs, of the case that the schedule names."""
    schedule = case.schedule
    last = case.with_steps(case.steps[-1:]).with_schedule(Schedule())
    if schedule.second == "bucket":
        return [_doubled(last, stepped), last]
    if schedule.second == "value":
        [axis] = [axis for axis in fixed if axis.name == schedule.axis]
        return [*(last.with_value(axis.name, value) for value in _next_values(axis, case.values)), last]
    return [last]


def larger_of(case: Case, stepped: Sequence[StepAxis]) -> Case:
    """A case with twice as many rows."""
    return _doubled(case.with_steps(case.steps[-1:]).with_schedule(Schedule()), stepped)


def _next_values(axis: FixedAxis, values: Mapping[str, Value]) -> list[Value]:
    """The axis' other values, those behind the case's own first."""
    common: list[Value] = list(axis.common)
    at = common.index(values[axis.name]) + 1 if values[axis.name] in common else 0
    return [value for value in common[at:] + common[:at] if value != values[axis.name]]


def _doubled(case: Case, stepped: Sequence[StepAxis]) -> Case:
    steps: list[dict[str, StepValue]] = []
    for step in case.steps:
        doubled = dict(step)
        for axis in stepped:
            value = step[axis.name]
            if isinstance(axis, RowsAxis) and isinstance(value, list):
                doubled[axis.name] = value * 2 or [axis.least]
            elif isinstance(axis, StepIntAxis) and axis.up_to_batch and isinstance(value, int):
                doubled[axis.name] = value * 2
        steps.append(doubled)
    return case.with_steps(steps)
