"""Replaying an entry: does the fault still show?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from capfuzz.corpus.entry import Entry, Expect
from capfuzz.differential import Implementation, Outcome
from capfuzz.targets import Case, Subject, get_target, shipped, variant


class Status(str, Enum):
    """FAILED: the recorded fault is still there. FIXED: the implementation is equivalent. CHANGED: another fault."""

    FAILED = "FAILED"
    FIXED = "FIXED"
    CHANGED = "CHANGED"


@dataclass(frozen=True)
class Replayed:
    entry: Entry
    subject: Subject
    outcome: Outcome
    status: Status

    @property
    def as_expected(self) -> bool:
        """Whether this is what the entry says that replay must show."""
        if self.entry.expect is Expect.EQUIVALENT:
            return self.status is Status.FIXED
        return self.status is Status.FAILED


def subject_of(entry: Entry, own: Implementation | None = None, label: str = "") -> Subject:
    """The implementation that an entry is replayed on: `own` if given, its variant, else the shipped one.

    An entry found on a user's function never names code to import; without `own` it is a regression case of the shipped op.
    """
    target = get_target(entry.target)
    if own is not None:
        return Subject(target, label, own)
    kind, _, name = entry.implementation.partition(":")
    return variant(target, name) if kind == "variant" else shipped(target)


def replay(entry: Entry, subject: Subject, judge: Callable[[Case], Outcome]) -> Replayed:
    """Judges the entry's case, and says what that means for the entry."""
    outcome = judge(entry.case)
    if not outcome.is_fault:
        status = Status.FIXED
    else:
        status = Status.FAILED if outcome.label == entry.label else Status.CHANGED
    return Replayed(entry, subject, outcome, status)
