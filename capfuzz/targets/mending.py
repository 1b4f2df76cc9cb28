"""Searches the line that a wrong answer comes from: the one where a small edit makes every answer right.

Nothing says of the values between the inputs and a wrong answer which of them is wrong, so the trace can tell only where the
answer was written last. An edit that mends every case does tell: the fault is there, and this is a way to mend it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from capfuzz.devices import Device, open_device
from capfuzz.devices.trace import SourceLocation
from capfuzz.differential import Outcome, Runner, Verdict, callables_of, check
from capfuzz.targets.case import Case
from capfuzz.targets.edits import Edit, edits
from capfuzz.targets.model import Subject
from capfuzz.targets.reach import reachable

EDIT_SECONDS = 2.0  # an edit may make a loop endless


@dataclass(frozen=True)
class Mended:
    """The statement at `location`, and what instead of it gives the right answers in so many cases; empty: without it."""

    location: SourceLocation
    before: str
    after: str
    cases: int


def can_be_mended(subject: Subject, outcome: Outcome) -> bool:
    """Whether an edit tells more of a fault than its trace does: of a wrong answer, and of what a runner answers."""
    if outcome.verdict is Verdict.DIVERGENCE:
        return isinstance(subject.function, Runner)
    return outcome.verdict in (Verdict.REFERENCE_MISMATCH, Verdict.INVARIANT)


def mend(subject: Subject, cases: Sequence[Case], seconds: float) -> Mended | None:
    """The first edit with which all these cases are equivalent; None where there is none, or time runs out.

    `cases[0]` is one that shows the fault. Judged on the simulated device, wherever the fault was found: wrong edits raise, and
    would cost a GPU. The implementation's state is not what it was afterwards: call this in a process that is given up.
    """
    deadline = time.monotonic() + seconds
    with open_device("sim") as device:
        if _are_right(device, subject, cases[:1]):
            return None
        for edit in edits(_own_functions(subject)):
            if time.monotonic() > deadline:
                return None
            with _made(edit):
                if _are_right(device, subject, cases):
                    return Mended(edit.location, edit.before, edit.after, len(cases))
    return None


def _own_functions(subject: Subject) -> list[types.FunctionType]:
    """Those of the implementation that the shipped one, which is right, has not."""
    right = subject.target.implementation
    innocent = [] if subject.function is right else reachable(callables_of(right))
    return [each for each in reachable(callables_of(subject.function)) if each not in innocent]


def _are_right(device: Device, subject: Subject, cases: Sequence[Case]) -> bool:
    target = subject.target
    try:
        with _limited(EDIT_SECONDS):
            for case in cases:
                drive = target.drive(case)
                if check(device, subject.function, target.feeds(case), target.reference, target.laws, drive).is_fault:
                    return False
    except (Exception, SystemExit):
        return False
    return True


@contextlib.contextmanager
def _made(edit: Edit) -> Iterator[None]:
    code = edit.function.__code__
    edit.function.__code__ = edit.code
    try:
        yield
    finally:
        edit.function.__code__ = code


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in what takes longer; without a limit where no signal can be had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def out(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, out)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
