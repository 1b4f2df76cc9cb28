"""The op trace of one case: what its capture did, op by op, and the error that ended it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from capfuzz.devices import Device
from capfuzz.devices.errors import Rule, first_line, root_cause, rule_of
from capfuzz.devices.trace import OpRecord, blamed
from capfuzz.devices.tracer import CaptureTrace, trace_capture
from capfuzz.differential import Blame, Outcome, Runner, Verdict
from capfuzz.differential.run import RAISED, SEED, Run, fill
from capfuzz.targets.case import Case
from capfuzz.targets.model import Subject


@dataclass(frozen=True)
class OpTrace:
    """The ops of one capture in their order. `error` is what ended it early, as a run would call it; `warm_up`: the eager call
    before the capture raised it."""

    records: list[OpRecord]
    error: Outcome | None = None
    warm_up: bool = False


def trace_case(device: Device, subject: Subject, case: Case) -> OpTrace:
    """Captures the first inputs of a case, after one eager call in the same buffers, and traces that.

    A `Runner` captures by itself, out of sight: it has no ops here.
    """
    if isinstance(subject.function, Runner):
        return OpTrace([])
    feed = subject.target.feeds(case)[0]
    run = Run(device, subject.function, [feed])
    buffers = run.buffers(feed)
    try:
        body = run.captured_body(feed, buffers)
    except RAISED as error:
        return op_trace(device, CaptureTrace(error=error, warm_up=True))
    return op_trace(device, trace_capture(device, body, SEED, partial(fill, feed, buffers)))


def op_trace(device: Device, traced: CaptureTrace) -> OpTrace:
    """What the device traced, with its error as an outcome."""
    if traced.error is None:
        return OpTrace(traced.records)
    if traced.warm_up:
        error, verdict, cause = traced.error, Verdict.EAGER_ERROR, type(traced.error).__name__
    else:
        error, verdict, cause = root_cause(traced.error), Verdict.CAPTURE_ERROR, rule_of(traced.error).value
    own = cause == Rule.HOST_EXCEPTION.value  # of the user's code, not CUDA's: the type says more than the text
    message = f"{type(error).__name__}: {first_line(error)}" if own else first_line(error)
    outcome = Outcome(verdict, cause, message, Blame(blamed(error), device.failed_op(error)))
    return OpTrace(traced.records, outcome, traced.warm_up)
