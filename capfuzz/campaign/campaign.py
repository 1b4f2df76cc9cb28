"""A campaign: cases go in, findings come out, each once, minimised and saved as soon as it is known.

An engine calls `try_case`; everything else is the same for every engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from capfuzz import corpus as corpora
from capfuzz.campaign.events import Event, Finished, Found, Handler, Minimising, Progress, Started
from capfuzz.devices import Device
from capfuzz.differential import Outcome, check, explain
from capfuzz.findings import Finding, signature
from capfuzz.findings.matter import axes_that_matter
from capfuzz.findings.minimise import minimise
from capfuzz.targets import Case, Subject

CONFIRMATIONS = 2
PROGRESS_SECONDS = 0.25


class CampaignOver(BaseException):
    """The budget is spent. Not an `Exception`: neither an engine nor user code may take it for a failure of the case."""


class CampaignFailed(BaseException):
    """capfuzz itself failed on a case: not a finding, and no engine may take it for one. `__cause__` is the error."""


@dataclass(frozen=True)
class Budget:
    """When to stop: cases, seconds, findings; None is no limit."""

    max_examples: int | None = 2000
    max_time: float | None = None
    max_findings: int | None = None


class Campaign:
    """One run over one implementation on one device."""

    def __init__(
        self,
        subject: Subject,
        device: Device,
        emit: Handler,
        *,
        engine: str,
        seed: int | None,
        budget: Budget,
        corpus: Path | None,
    ) -> None:
        self.subject = subject
        self.device = device
        self.engine = engine
        self.seed = seed
        self.budget = budget
        self.corpus = corpus
        self.cases = 0
        self.findings: dict[str, Finding] = {}
        self.exhausted = False
        self._emit = emit
        self._covered: dict[str, set[int | str]] = {}
        self._begun = self._last_progress = time.monotonic()

    def start(self) -> None:
        self._begun = time.monotonic()
        budget = self.budget
        self._say(
            Started(
                self.subject.target.name,
                self.subject.label,
                self.device.describe(),
                self.engine,
                self.seed,
                budget.max_examples,
                budget.max_time,
            )
        )

    def finish(self, interrupted: bool = False) -> None:
        coverage = {name: sorted(values, key=lambda v: (isinstance(v, str), v)) for name, values in self._covered.items()}
        self._say(
            Finished(self.cases, self.seconds, len(self.findings), coverage, self.exhausted and not interrupted, interrupted)
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def try_case(self, case: Case) -> None:
        """Checks one case; a fault that is not yet known becomes a finding. Raises `CampaignOver` when the budget is spent,
        `CampaignFailed` when capfuzz itself fails."""
        self._stop_if_spent()
        try:
            outcome = self._check(case)
            self.cases += 1
            self._cover(case)
            if outcome.is_fault:
                self.fault(case, outcome)
            self.progress()
        except Exception as error:
            raise CampaignFailed(f"the harness failed on case {case!r:.400}") from error

    def progress(self) -> None:
        now = time.monotonic()
        if now - self._last_progress >= PROGRESS_SECONDS:
            self._last_progress = now
            self._say(Progress(self.cases, self.seconds, len(self.findings)))

    def count(self, cases: int) -> None:
        """An engine in another process reports how many cases it has run."""
        self.cases = cases
        self.progress()

    def cover(self, name: str, values: set[int | str]) -> None:
        self._covered.setdefault(name, set()).update(values)

    def fault(self, case: Case, outcome: Outcome) -> None:
        """A failing case: explained, and if its signature is new, minimised, saved and reported."""
        outcome = self._explain(case, outcome)
        key = signature(self.subject.target.name, outcome)
        if key in self.findings:
            return
        self._say(Minimising(outcome.label))
        finding = self._minimised(key, case, outcome)
        self.findings[key] = finding
        self._save(key, finding)
        if self.budget.max_findings is not None and len(self.findings) >= self.budget.max_findings:
            raise CampaignOver

    # -- one finding ---------------------------------------------------------------------------------------------------

    def _minimised(self, key: str, case: Case, outcome: Outcome) -> Finding:
        def still_fails(candidate: Case) -> bool:
            again = self._check(candidate)
            if again.label != outcome.label:
                return False
            return signature(self.subject.target.name, self._explain(candidate, again)) == key

        flaky = not all(still_fails(case) for _ in range(CONFIRMATIONS))
        checks = 0
        axes: dict[str, str] = {}
        smallest = case
        if not flaky:
            try:
                best = minimise(self.subject.target, case, still_fails)
                smallest, checks = best.case, best.checks
                axes = axes_that_matter(self.subject.target, smallest, still_fails)
                outcome = self._explain(smallest, self._check(smallest))
            except KeyboardInterrupt:
                self.findings[key] = self._finding(key, case, outcome, 0, {}, flaky)
                self._save(key, self.findings[key])
                raise
        return self._finding(key, smallest, outcome, checks, axes, flaky)

    def _finding(self, key: str, case: Case, outcome: Outcome, checks: int, axes: dict[str, str], flaky: bool) -> Finding:
        subject = self.subject
        return Finding(
            subject.target.name,
            subject.label,
            case,
            outcome,
            key,
            self.seed,
            self.device.name,
            self.engine,
            checks,
            axes,
            flaky,
        )

    def _save(self, key: str, finding: Finding) -> None:
        if self.corpus is None:
            self._say(Found(finding, None, True))
            return
        try:
            path, is_new = corpora.save(self.corpus, key, corpora.from_finding(finding))
        except corpora.CorpusError as error:
            self._say(Found(finding, None, True, str(error)))
        else:
            self._say(Found(finding, path, is_new))

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _check(self, case: Case) -> Outcome:
        target = self.subject.target
        return check(self.device, self.subject.function, target.feeds(case), target.reference)

    def _explain(self, case: Case, outcome: Outcome) -> Outcome:
        target = self.subject.target
        return explain(self.device, self.subject.function, target.feeds(case), target.reference, outcome)

    def _stop_if_spent(self) -> None:
        if self.budget.max_time is not None and self.seconds >= self.budget.max_time:
            raise CampaignOver

    def _cover(self, case: Case) -> None:
        self._covered.setdefault("batch", set()).add(self.subject.target.batch(case))
        for name, value in case.values.items():
            self._covered.setdefault(name, set()).add(value)
        self._covered.setdefault("changed inputs", set()).add(len(case.steps) - 1)

    def _say(self, event: Event) -> None:
        self._emit(event)
