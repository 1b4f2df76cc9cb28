"""The line of a fault: the check runs once more with every op traced, and says which line is to blame."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from capfuzz.devices.base import Device
from capfuzz.devices.errors import Rule
from capfuzz.devices.layout import CONTIGUOUS, Argument
from capfuzz.devices.trace import Location
from capfuzz.differential.blame import ImplementationTracer, Traces, guilty_op, last_writer, parting
from capfuzz.differential.check import Reference, checked, differences
from capfuzz.differential.laws import Law
from capfuzz.differential.run import RAISED, SEED, SIMPLY, Drive, Feed, Implementation, Run, argument, contiguous
from capfuzz.differential.runner import Runner
from capfuzz.differential.story import Story, Watched
from capfuzz.differential.verdict import Blame, Cause, Outcome, Verdict

# The graph took another branch than eager did.
_BRANCHED = (Rule.HOST_EXCEPTION.value, Cause.SHAPE, Cause.DTYPE, Cause.STRUCTURE)


def explain(
    device: Device,
    implementation: Implementation,
    feeds: Sequence[Feed],
    reference: Reference | None,
    outcome: Outcome,
    laws: Mapping[str, Law] | None = None,
    drive: Drive = SIMPLY,
) -> Outcome:
    """The outcome with the line that is to blame.

    One that has its line already (a capture error) comes back as it is, but for two whose line is where the fault came to
    light, which their message names: freed memory, of which who lost it is blamed, and an exception that only the capture
    path raises, of which a change to the host's memory on that path is.
    """
    if not outcome.is_fault:
        return outcome
    of_runner = outcome.verdict is Verdict.DIVERGENCE and isinstance(implementation, Runner)
    if of_runner or outcome.verdict is Verdict.DANGLING_BUFFER or outcome.cause in (*_BRANCHED, Cause.HOST_STATE):
        told = _told(Run(device, implementation, feeds, drive), reference, outcome)
        outcome = outcome if told is None else replace(outcome, blame=told, message=_with_raiser(outcome))
    if outcome.blame.location is not None:
        return outcome
    run = Run(device, implementation, feeds, drive, traces=Traces())
    traced = checked(run, reference, laws or {})
    if (traced.verdict, traced.cause) != (outcome.verdict, outcome.cause) or run.traces is None:
        return outcome
    if outcome.verdict is Verdict.REPLAY_ERROR:
        blame = traced.blame  # the node that the replay ended at
    elif of_runner:
        blame = _definition(run)
    elif outcome.verdict is Verdict.DIVERGENCE:
        blame = _parted(run, traced)
    else:
        misread = None if outcome.verdict is Verdict.NONDETERMINISTIC else _misread(run)
        blame = misread or last_writer(run.traces, *_wrong_outputs(run, reference))
        if blame.location is None:
            blame = _definition(run)
    return Outcome(outcome.verdict, outcome.cause, outcome.message, blame, outcome.mismatch)


def _told(run: Run, reference: Reference | None, outcome: Outcome) -> Blame | None:
    """The line that only the story of the whole check has; None where it has none, or ends in another way."""
    runner = run.implementation if isinstance(run.implementation, Runner) else None
    device = Watched(run.device, Story(run.codes), runner)
    again = checked(Run(cast("Device", device), run.implementation, run.feeds, run.drive), reference, {})
    if again.label != outcome.label:
        return None
    if outcome.verdict is Verdict.DANGLING_BUFFER:
        return device.loser_of(again.blame)
    if runner is None and outcome.cause in _BRANCHED:
        return device.changer_of_host_memory()
    path = "" if again.mismatch is None else again.mismatch.path
    if path.startswith("buffer "):
        return device.writer_of(argument(run.feeds[0], path.removeprefix("buffer ")))
    return device.answerer(path)


def _with_raiser(outcome: Outcome) -> str:
    """The message, and of an exception on the capture path also the line that raised it."""
    location = outcome.blame.location
    if outcome.verdict is not Verdict.CAPTURE_ERROR or location is None:
        return outcome.message
    return f"{outcome.message} (raised by {location.text!r}, {os.path.basename(location.file)}:{location.line})"


def _wrong_outputs(run: Run, reference: Reference | None) -> tuple[int, list[str]]:
    """The first step whose eager answer is wrong, and its wrong outputs; the last step and none, where no reference tells."""
    if reference is not None:
        for step, seen in enumerate(run.eager):
            paths = [mismatch.path for mismatch in differences(run, reference, step, seen)]
            if paths:
                return step, paths
    return len(run.eager) - 1, []


def _parted(run: Run, outcome: Outcome) -> Blame:
    """For a divergence: where eager and replay part. They are compared in one layout, whichever eager has run in."""
    traces = run.traces
    assert traces is not None
    if run.schedule.eager_layout == "contiguous":
        step = traces.step
        tracer, result = _traced(run, step, run.feeds[step])
        misread = parting(tracer.records, traces.eager[step])
        if misread is not None:
            return misread
        traces.add_eager(step, tracer, result)
    path = "" if outcome.mismatch is None else outcome.mismatch.path
    return guilty_op(traces, outcome.cause == Cause.UNWRITTEN_OUTPUT, path)


def _misread(run: Run) -> Blame | None:
    """For a wrong eager answer: the first op that sees other values than on the same inputs in plain memory."""
    assert run.traces is not None
    was_plain = run.schedule.eager_layout == "contiguous"
    for step, feed in enumerate(run.feeds):
        if all(value.layout == CONTIGUOUS for value in feed.values() if isinstance(value, Argument)):
            continue
        try:
            other = _traced(run, step, feed if was_plain else contiguous(feed))[0].records
        except RAISED:
            continue
        traced = run.traces.eager[step]
        blame = parting(other, traced) if was_plain else parting(traced, other)
        if blame is not None:
            return blame
    return None


def _traced(run: Run, step: int, feed: Feed) -> tuple[ImplementationTracer, Any]:
    """One more eager call for a step, in the layouts of `feed`. Raises what the implementation raises."""
    tracer = run.tracer()
    assert tracer is not None
    return tracer, run.device.eager(run.eager_body(feed, run.buffers(feed)), SEED + step, tracer)


def _definition(run: Run) -> Blame:
    """Where the implementation begins, behind its decorators."""
    code = run.code
    if code is None:
        return Blame(None, None)
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return Blame(Location(code, line), None)
