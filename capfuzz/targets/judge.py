"""The verdict of one case, with its line where it is a fault."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from capfuzz.devices import Device
from capfuzz.differential import Blame, Outcome, Verdict, check, explain
from capfuzz.targets.case import Case
from capfuzz.targets.model import Subject

_MAY_COST_THE_DEVICE = (Verdict.EAGER_ERROR, Verdict.CAPTURE_ERROR, Verdict.REPLAY_ERROR)
_RAISED_IN_EAGER = (Verdict.EAGER_ERROR, Verdict.REPLAY_ERROR)  # the latter where a part of the host raises before a replay


def judge(
    device: Device,
    subject: Subject,
    case: Case,
    only: str | None = None,
    seen: Callable[[Outcome], object] = lambda outcome: None,
) -> Outcome:
    """Runs the whole check on a case; a fault is explained. With `only`, a fault with another label is not.

    An error that costs the device was raised wherever the host noticed, so it has no line, unless `only` asks for it.
    `seen` is told of a fault before its line is searched for: that runs the case again, and may take long.
    """
    target = subject.target
    feeds = target.feeds(case)
    drive = target.drive(case)

    def outcome_of(exact: bool) -> Outcome:
        with device.exact() if exact else nullcontext():
            return check(device, subject.function, feeds, target.reference, target.laws, drive)

    exact = only is not None and only.partition(":")[0] in [verdict.value for verdict in _RAISED_IN_EAGER]
    outcome = outcome_of(exact)
    if not outcome.is_fault or (only is not None and outcome.label != only):
        return outcome
    if outcome.verdict in _MAY_COST_THE_DEVICE and not device.is_healthy():  # nothing more can be run here
        return outcome if exact or outcome.verdict is Verdict.CAPTURE_ERROR else replace(outcome, blame=Blame(None, None))
    seen(outcome)
    if outcome.verdict in _RAISED_IN_EAGER and not exact and outcome.blame.op is None:  # the op is part of the fault's name
        again = outcome_of(exact=True)
        outcome = again if again.label == outcome.label else outcome
    return explain(device, subject.function, feeds, target.reference, outcome, target.laws, drive)
