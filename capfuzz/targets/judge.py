"""The verdict of one case, with its line where it is a fault."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from capfuzz.devices import Device, open_device
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

    An error that costs the device was raised wherever the host noticed, so it has no line: in eager code it has one if `only`
    asks for it, in a replay if the simulated device ends in the same way.
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
        if outcome.verdict is Verdict.CAPTURE_ERROR or (exact and outcome.verdict is Verdict.EAGER_ERROR):
            return outcome
        outcome = replace(outcome, blame=Blame(None, None))
        if outcome.verdict is Verdict.EAGER_ERROR:
            return outcome
        seen(outcome)
        return replace(outcome, blame=_simulated(subject, case, outcome))
    seen(outcome)
    in_eager = outcome.verdict in _RAISED_IN_EAGER and outcome.blame.location is not None
    if in_eager and not exact and outcome.blame.op is None:  # the op is part of the fault's name
        again = outcome_of(exact=True)
        outcome = again if again.label == outcome.label else outcome
    return explain(device, subject.function, feeds, target.reference, outcome, target.laws, drive)


def _simulated(subject: Subject, case: Case, outcome: Outcome) -> Blame:
    """The line that the simulated device blames for the same outcome: a graph does not tell which of its nodes was the last."""
    try:
        with open_device("sim") as device:
            told = judge(device, subject, case, outcome.label)
    except Exception:  # what the implementation keeps may lie on the lost device
        return outcome.blame
    return told.blame if told.label == outcome.label else outcome.blame
