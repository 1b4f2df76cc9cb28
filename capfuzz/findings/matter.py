"""Which axes matter: for the minimal case each axis is varied with the others held.

"any" means that the fault shows whatever the value; otherwise the line says for which of the values tried it does. This answers
the reviewer who asks why thirty combinations were run where one proves the same thing.
"""

from __future__ import annotations

from collections.abc import Iterator

from capfuzz.findings.minimise import StillFails
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.model import Target

BATCHES_TRIED = (0, 1, 2, 8, 37)


def axes_that_matter(target: Target, case: Case, still_fails: StillFails) -> dict[str, str]:
    """One line an axis, in the target's order, batch first, replays last."""
    lines: dict[str, str] = {}
    if any(isinstance(axis, RowsAxis) for axis in target.stepped):
        lines["batch"] = _verdict(still_fails, ((str(size), resized(target, case, size)) for size in BATCHES_TRIED), target)
    for axis in target.fixed:
        values = axis.common if isinstance(axis, (IntAxis, ChoiceAxis)) else ()
        lines[axis.name] = _verdict(still_fails, ((str(v), case.with_value(axis.name, v)) for v in values), target)
    changes = len(case.steps) - 1
    lines["replays"] = (
        f"needs {changes} set{'s' if changes > 1 else ''} of changed inputs" if changes else "needs no changed inputs"
    )
    if needs := case.schedule.needs():
        lines["schedule"] = f"needs {'; '.join(needs)}"
    return lines


def _verdict(still_fails: StillFails, cases: Iterator[tuple[str, Case]], target: Target) -> str:
    failing: list[str] = []
    passing: list[str] = []
    illegal: list[str] = []
    for name, case in cases:
        try:
            target.feeds(case)
        except InvalidCaseError:
            illegal.append(name)
            continue
        (failing if still_fails(case) else passing).append(name)
    beside = f"; {', '.join(illegal)} not legal with this case" if illegal else ""
    if not passing:
        return f"any (tried {', '.join(failing)}{beside})"
    return f"only {', '.join(failing) or 'the value of the case'} (not {', '.join(passing)}{beside})"


def resized(target: Target, case: Case, size: int) -> Case:
    """The case with `size` rows: the first ones kept, the last one repeated."""
    names = [axis.name for axis in target.stepped if isinstance(axis, RowsAxis)]
    steps: list[dict[str, int | list[int]]] = []
    for number, step in enumerate(case.steps):
        resized = dict(step)
        for name in names:
            rows = step[name]
            assert isinstance(rows, list)
            filler = rows[-1] if rows else number
            resized[name] = (rows + [filler] * size)[:size]
        steps.append(resized)
    return case.with_steps(steps)
