"""Cases that are one step lower than a case, on one axis each: what 1-minimality is measured with.

Written against the axes alone, and on purpose not with the minimiser's passes, which are what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args, get_type_hints

import msgspec

from capfuzz.differential import Schedule
from capfuzz.targets import Case, InvalidCaseError, Target
from capfuzz.targets.axes import ChoiceAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import StepValue

Step = dict[str, StepValue]


def one_step_lower(target: Target, case: Case) -> list[Case]:
    """Every legal case with one axis lowered by one step; none is the case itself, none comes twice."""
    lower = [*_schedules(case), *_fewer_steps(case), *_fixed(target, case), *_fewer_rows(target, case), *_values(target, case)]
    return [each for each in {repr(each): each for each in lower}.values() if each != case and _is_legal(target, each)]


def _is_legal(target: Target, case: Case) -> bool:
    try:
        target.feeds(case)
    except InvalidCaseError:
        return False
    return True


def _schedules(case: Case) -> Iterator[Case]:
    """Each field of the schedule at each of its simpler values, in the order of its type; one warm-up is simplest."""
    schedule = case.schedule
    simpler: list[dict[str, object]] = [{"eager_between": False}, {"eager_layout": "same"}, {"second_dies": False}]
    simpler += [{"warm_ups": number} for number in (range(1, schedule.warm_ups) if schedule.warm_ups else [1])]
    simpler += [{"between": name} for name in _names_before("between", schedule.between)]
    simpler += [{"second": "none", "axis": None, "second_dies": False}]
    simpler += [{"second": name, "axis": None} for name in _names_before("second", schedule.second) if name != "none"]
    for changes in simpler:
        yield case.with_schedule(msgspec.structs.replace(schedule, **changes))


def _names_before(field: str, name: str) -> tuple[str, ...]:
    names = get_args(get_type_hints(Schedule)[field])
    return names[: names.index(name)]


def _fewer_steps(case: Case) -> Iterator[Case]:
    if len(case.steps) > 1:
        for number in range(len(case.steps)):
            yield case.with_steps(case.steps[:number] + case.steps[number + 1 :])


def _fixed(target: Target, case: Case) -> Iterator[Case]:
    for axis in target.fixed:
        value = case.values[axis.name]
        if isinstance(axis, ChoiceAxis):
            for simpler in axis.common[: axis.common.index(str(value))]:
                yield case.with_value(axis.name, simpler)
        else:
            assert isinstance(value, int)
            for number in _lower(value, axis.simplest):
                yield case.with_value(axis.name, number)


def _fewer_rows(target: Target, case: Case) -> Iterator[Case]:
    """Each row left out of every step. What counts rows counts at most those that are left."""
    axes = [axis.name for axis in target.stepped if isinstance(axis, RowsAxis)]
    counts = [axis.name for axis in target.stepped if isinstance(axis, StepIntAxis) and axis.up_to_batch]
    for row in range(target.batch(case) if axes else 0):
        steps: list[Step] = []
        for step in case.steps:
            fewer: Step = {name: _rows(step, name)[:row] + _rows(step, name)[row + 1 :] for name in axes}
            left = target.batch(case) - 1
            steps.append({**step, **fewer, **{name: min(_number(step, name), left) for name in counts}})
        yield case.with_steps(steps)


def _values(target: Target, case: Case) -> Iterator[Case]:
    for number, step in enumerate(case.steps):
        for axis in target.stepped:
            if isinstance(axis, StepIntAxis):
                for lower in _lower(_number(step, axis.name), axis.least):
                    yield case.with_step_value(number, axis.name, lower)
                continue
            rows = _rows(step, axis.name)
            for row, value in enumerate(rows):
                for lower in _lower(value, axis.least):
                    yield case.with_step_value(number, axis.name, [*rows[:row], lower, *rows[row + 1 :]])


def _lower(value: int, least: int) -> list[int]:
    """One less, and half of the way to the least."""
    return [value - 1, least + (value - least) // 2] if value > least else []


def _rows(step: Step, name: str) -> list[int]:
    rows = step[name]
    assert isinstance(rows, list)
    return rows


def _number(step: Step, name: str) -> int:
    number = step[name]
    assert isinstance(number, int)
    return number
