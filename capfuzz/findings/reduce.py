"""From a finding to its minimal form: confirmed, minimised, its axes varied. The same for a campaign and for a corpus entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from capfuzz.differential import Outcome, Verdict
from capfuzz.findings.finding import Finding, signature
from capfuzz.findings.matter import axes_that_matter
from capfuzz.findings.minimise import minimise
from capfuzz.targets import Case, Target

CONFIRMATIONS = 2
HANG_SECONDS = 1.0
MINIMISE_SECONDS = 30.0

Ask = Callable[[Case, str, float | None], Outcome]
"""Judges a case: with the label that is looked for, and the seconds that it may take."""


class _TimeIsOut(Exception):
    pass


def seconds_of(outcome: Outcome) -> float | None:
    """How long a case like this may take while it is minimised: one that hangs takes all that it is given."""
    return HANG_SECONDS if outcome.verdict is Verdict.HANG else None


def reduced(
    target: Target, found: Finding, ask: Ask, seconds_left: Callable[[float], float] = lambda most: most
) -> tuple[Finding, str | None]:
    """The finding with its smallest case and the axes that matter, and a note where time ran out before they were known.

    One that does not show every time is marked flaky and left as it is. `seconds_left` gives at most its argument.
    """
    seconds = seconds_of(found.outcome)

    def still_fails(candidate: Case) -> bool:
        again = ask(candidate, found.outcome.label, seconds)
        return again.label == found.outcome.label and signature(target.name, again) == found.signature

    def in_time(candidate: Case) -> bool:
        if seconds_left(MINIMISE_SECONDS) <= 0:
            raise _TimeIsOut
        return still_fails(candidate)

    if not all(still_fails(found.case) for _ in range(CONFIRMATIONS)):
        return replace(found, flaky=True), None
    best = minimise(target, found.case, still_fails, seconds_left(MINIMISE_SECONDS))
    missed = [] if best.complete else ["not fully minimised"]
    axes: dict[str, str] = {}
    try:
        axes = axes_that_matter(target, best.case, in_time)
    except _TimeIsOut:
        missed.append("axes not varied")
    outcome = ask(best.case, found.outcome.label, None)
    if signature(target.name, outcome) != found.signature:
        return replace(found, flaky=True), None
    note = f"{', '.join(missed)}: time ran out" if missed else None
    return replace(found, case=best.case, outcome=outcome, checks=best.checks, axes=axes), note
