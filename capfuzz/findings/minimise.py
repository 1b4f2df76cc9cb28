"""Minimising a case: passes that each lower one thing, run in turn until none of them makes progress.

A *pass* takes the best case so far and yields candidates, each one lower in the thing that the pass is about; the first
candidate that still shows the fault becomes the best, and the pass starts again from it. A candidate counts only if it has the
same signature as the finding: without that, minimising a rare fault slides into a common one (slippage). Candidates go from
bold to careful (half the rows before one row), so that large cases fall quickly, and every pass ends with its smallest step,
so that at the fixed point no axis can be lowered by one step with the fault still there.

Passes work on explicit values, never on the engine's random choices: what comes out does not depend on how the case was drawn.
The schedule goes first, then replays (a capture error needs neither); choices before rows, while there are rows enough to show
the fault in a simpler layout; then rows, and what is left of each row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from capfuzz.differential.schedule import COLD, SIMPLEST
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.model import Target

Candidates = Iterator[Case]
StillFails = Callable[[Case], bool]

# Of each the simplest first.
_SECOND = ("none", "twin", "bucket", "value")
_BETWEEN = ("nothing", "churn", "larger", "both")


@dataclass
class MinimiserPass:
    """One pass: its name, what it guarantees when it ends, and how often it was right."""

    name: str
    candidates: Callable[[Target, Case], Candidates]
    calls: int = 0
    progress: int = 0


@dataclass
class Minimised:
    """The smallest case found; `complete` is False when time ran out before the fixed point."""

    case: Case
    checks: int
    complete: bool
    passes: list[MinimiserPass] = field(default_factory=list)


def minimise(target: Target, case: Case, still_fails: StillFails, max_seconds: float = 30.0) -> Minimised:
    """Lowers `case` on every axis while `still_fails`. `still_fails` is never asked twice about one case."""
    best = Minimised(case, 0, True, default_passes())
    asked: set[str] = {repr(case)}
    deadline = time.monotonic() + max_seconds
    while True:
        before = best.case
        for step in best.passes:
            _run_pass(step, target, best, still_fails, asked, deadline)
        if best.case == before or not best.complete:
            return best


def _run_pass(
    step: MinimiserPass, target: Target, best: Minimised, still_fails: StillFails, asked: set[str], deadline: float
) -> None:
    moved = True
    while moved:
        moved = False
        for candidate in step.candidates(target, best.case):
            key = repr(candidate)
            if key in asked or not _valid(target, candidate):
                continue
            if time.monotonic() > deadline:
                best.complete = False
                return
            asked.add(key)
            step.calls += 1
            best.checks += 1
            if still_fails(candidate):
                step.progress += 1
                best.case = candidate
                moved = True
                break


def _valid(target: Target, case: Case) -> bool:
    try:
        target.feeds(case)
    except InvalidCaseError:
        return False
    return True


def default_passes() -> list[MinimiserPass]:
    return [
        MinimiserPass("simplest schedule", lower_schedule),
        MinimiserPass("drop changed inputs", drop_steps),
        MinimiserPass("simplest choices", lower_choices),
        MinimiserPass("drop rows", drop_rows),
        MinimiserPass("lower host integers", lower_integers),
        MinimiserPass("lower step integers", lower_step_integers),
        MinimiserPass("zero whole steps", zero_steps),
        MinimiserPass("lower row values", lower_rows),
    ]


def lower_schedule(target: Target, case: Case) -> Candidates:
    """Nothing that the schedule asks for can be left out, and no warm-up."""
    schedule = case.schedule
    if schedule == SIMPLEST:
        return
    yield case.with_schedule(SIMPLEST)
    if schedule.second != "none":
        yield case.with_schedule(msgspec.structs.replace(schedule, second="none", axis=None, second_dies=False))
        for second in _SECOND[1 : _SECOND.index(schedule.second)]:
            yield case.with_schedule(msgspec.structs.replace(schedule, second=second, axis=None))
        yield case.with_schedule(msgspec.structs.replace(schedule, second_dies=False))
    for between in _BETWEEN[: _BETWEEN.index(schedule.between)]:
        yield case.with_schedule(msgspec.structs.replace(schedule, between=between))
    yield case.with_schedule(msgspec.structs.replace(schedule, eager_between=False))
    yield case.with_schedule(msgspec.structs.replace(schedule, eager_layout="same"))
    if schedule.warm_ups == COLD:
        yield case.with_schedule(msgspec.structs.replace(schedule, warm_ups=1))
    else:
        for warm_ups in range(1, schedule.warm_ups):
            yield case.with_schedule(msgspec.structs.replace(schedule, warm_ups=warm_ups))


def drop_steps(target: Target, case: Case) -> Candidates:
    """No step of changed inputs can be left out."""
    if len(case.steps) > 2:
        yield case.with_steps(case.steps[:1])
    for index in range(len(case.steps) - 1, 0, -1):
        yield case.with_steps(case.steps[:index] + case.steps[index + 1 :])
    if len(case.steps) > 1:  # the changed inputs may show by themselves what the captured ones do not
        yield case.with_steps(case.steps[1:])


def drop_rows(target: Target, case: Case) -> Candidates:
    """No row can be taken out of every step, and neither one nor two rows of one will do."""
    axes = [axis.name for axis in target.stepped if isinstance(axis, RowsAxis)]
    if not axes:
        return
    counts = [axis.name for axis in target.stepped if isinstance(axis, StepIntAxis) and axis.up_to_batch]
    rows = case.steps[0][axes[0]]
    size = len(rows) if isinstance(rows, list) else 0
    chunk = size
    while chunk:
        for begin in range(size - chunk, -1, -chunk):
            yield case.with_steps([_without(step, axes, counts, begin, begin + chunk) for step in case.steps])
        chunk //= 2
    for few in range(1, min(size, 3)):  # a smaller batch may need larger values than the rows that are left have
        yield case.with_steps([_capped({**step, **dict.fromkeys(axes, [1] * few)}, counts, few) for step in case.steps])


def _capped(step: dict[str, int | list[int]], counts: list[str], rows: int) -> dict[str, int | list[int]]:
    """What counts rows counts at most those that there are."""
    return {name: min(value, rows) if name in counts and isinstance(value, int) else value for name, value in step.items()}


def _without(
    step: dict[str, int | list[int]], axes: list[str], counts: list[str], begin: int, end: int
) -> dict[str, int | list[int]]:
    kept = dict(step)
    size = 0
    for name in axes:
        rows = step[name]
        assert isinstance(rows, list)
        kept[name] = rows[:begin] + rows[end:]
        size = len(rows[:begin]) + len(rows[end:])
    return _capped(kept, counts, size)


def lower_choices(target: Target, case: Case) -> Candidates:
    """No choice (dtype, layout) can be replaced by one that is listed before it."""
    for axis in target.fixed:
        if isinstance(axis, ChoiceAxis):
            for choice in axis.common[: axis.common.index(str(case.values[axis.name]))]:
                yield case.with_value(axis.name, choice)


def lower_integers(target: Target, case: Case) -> Candidates:
    """No host integer can be lowered by one."""
    for axis in target.fixed:
        if isinstance(axis, IntAxis):
            value = case.values[axis.name]
            assert isinstance(value, int)
            for lower in lower_values(value, axis.simplest):
                yield case.with_value(axis.name, lower)


def lower_step_integers(target: Target, case: Case) -> Candidates:
    """No integer of a step can be lowered by one, alone or in every step at once."""
    for axis in target.stepped:
        if not isinstance(axis, StepIntAxis):
            continue
        yield case.with_steps([{**step, axis.name: axis.least} for step in case.steps])
        for index, step in enumerate(case.steps):
            value = step[axis.name]
            assert isinstance(value, int)
            for lower in lower_values(value, axis.least):
                yield case.with_step_value(index, axis.name, lower)


def zero_steps(target: Target, case: Case) -> Candidates:
    """No step with a larger value can have the least value in all its rows."""
    for axis in target.stepped:
        if isinstance(axis, RowsAxis):
            for index, step in enumerate(case.steps):
                rows = step[axis.name]
                assert isinstance(rows, list)
                if any(value > axis.least for value in rows):
                    yield case.with_step_value(index, axis.name, [axis.least] * len(rows))


def lower_rows(target: Target, case: Case) -> Candidates:
    """No value of a row can be lowered by one."""
    for axis in target.stepped:
        if not isinstance(axis, RowsAxis):
            continue
        for index, step in enumerate(case.steps):
            rows = step[axis.name]
            assert isinstance(rows, list)
            for row, value in enumerate(rows):
                for lower in lower_values(value, axis.least):
                    yield case.with_step_value(index, axis.name, [*rows[:row], lower, *rows[row + 1 :]])


def lower_values(value: int, least: int) -> Iterator[int]:
    """Candidates below `value`, a binary search when `minimise` starts again from the first that fails.

    Distances from `least` are tried in this order: zero and the powers of two, upwards; the distance with its low bits cleared,
    from the boldest; less a power of two below its lowest bit, down to one less, which is always among them. They lie on one
    grid whatever the value, so a search that starts again meets candidates that it has asked already: the whole search costs
    about three candidates a bit. Half of the distance comes last, for faults that a larger value may not show.
    """
    gap = value - least
    if gap <= 0:
        return
    distances = [0, *(1 << bit for bit in range(gap.bit_length()))]
    distances += [gap >> bit << bit for bit in range(gap.bit_length() - 1, 0, -1)]
    lowest_bit = (gap & -gap).bit_length() - 1
    distances += [gap - (1 << bit) for bit in range(lowest_bit - 1, -1, -1)]
    distances += [gap - 1, gap >> 1]
    for distance in dict.fromkeys(distances):
        if distance < gap:
            yield least + distance
