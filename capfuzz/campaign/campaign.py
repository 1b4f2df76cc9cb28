"""A campaign: cases go in, findings come out, each once, minimised and saved as soon as it is known.

An engine calls `try_case`; everything else is the same for every engine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from capfuzz import corpus as corpora
from capfuzz.campaign.events import Event, Finished, Found, Handler, Minimising, Progress, Started
from capfuzz.campaign.interrupts import Interrupts
from capfuzz.campaign.stats import Drawn
from capfuzz.differential import Outcome, Runner, Verdict
from capfuzz.findings import Finding, signature
from capfuzz.findings.heat import Cell, HeatMap, heat_map
from capfuzz.findings.reduce import HANG_SECONDS, reduced, seconds_of
from capfuzz.targets import Case, Subject
from capfuzz.targets.mending import Mended, can_be_mended
from capfuzz.targets.op_trace import OpTrace
from capfuzz.workers import Judge, JudgeFailed

HEAT_SECONDS = 10.0
MEND_SECONDS = 5.0
MEND_CASES = 40  # at most, of those that failed on the way to the minimal one, and of those that did not
TRACE_SECONDS = 5.0
LEAST_TRACE_SECONDS = 1.0  # also when the budget is spent: a trace takes milliseconds
PROGRESS_SECONDS = 0.25

Asked = dict[bool, list[Case]]
"""Cases that were judged on the way to a minimal one, by whether they showed the fault."""


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


@dataclass(frozen=True)
class Extras:
    """What reports want to know of a finding besides its case, and what costs time to find out."""

    heat: bool = False
    trace: bool = False


class Campaign:
    """One run over one implementation on one device."""

    def __init__(
        self,
        subject: Subject,
        judge: Judge,
        emit: Handler,
        *,
        engine: str,
        seed: int | None,
        budget: Budget,
        corpus: Path | None,
        interrupts: Interrupts | None = None,
        drawn: Drawn | None = None,
        extras: Extras | None = None,
    ) -> None:
        self.subject = subject
        self.judge = judge
        self.engine = engine
        self.seed = seed
        self.budget = budget
        self.corpus = corpus
        self._interrupts = interrupts or Interrupts()
        self._drawn = drawn
        self._extras = extras or Extras()
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
                self.judge.describe(),
                self.engine,
                self.seed,
                budget.max_examples,
                budget.max_time,
            )
        )

    def finish(self, ended_by: BaseException | None = None) -> None:
        """Says what there was. If an error or Ctrl-C ended it, the faults that were known and not yet taken are kept first."""
        interrupted = ended_by is not None
        if ended_by is not None:
            for case, outcome in self.judge.known():
                if outcome.is_fault and not self._is_known(finding := self._finding(case, outcome)):
                    self._keep(finding, _cut_short(ended_by))
        coverage = {name: sorted(values, key=lambda v: (isinstance(v, str), v)) for name, values in self._covered.items()}
        self._say(
            Finished(
                self.cases,
                self.seconds,
                len(self.findings),
                coverage,
                self.exhausted and not interrupted,
                interrupted,
                self._drawn,
                None if ended_by is None or isinstance(ended_by, KeyboardInterrupt) else _text(ended_by),
            )
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def try_case(self, case: Case) -> None:
        """Hands a case to the judge, and takes what it has to say by then; a fault that is not yet known becomes a finding.

        Raises `CampaignOver` when the budget is spent, `CampaignFailed` when capfuzz itself fails.
        """
        if self._is_spent():
            self._take(self.judge.drain(begun_only=True))
            raise CampaignOver
        self._interrupts.check()
        self._take(self.judge.feed(case, HANG_SECONDS if self._is_known_to_hang() else None))

    def take_the_rest(self) -> None:
        """Takes what the judge still has. An engine calls it at its end."""
        self._take(self.judge.drain())

    def confirm(self, case: Case) -> None:
        """Judges a case that has failed in an engine's own process."""
        with self._failing(f"on case {case!r:.400}"):
            outcome = self.judge.judge(case)
            if outcome.is_fault:
                self.fault(case, outcome)

    def _take(self, judged: Iterator[tuple[Case, Outcome]]) -> None:
        with self._failing("between two cases"):
            for case, outcome in judged:
                with self._failing(f"on case {case!r:.400}"):
                    self.cases += 1
                    self._cover(case)
                    if outcome.is_fault:
                        self.fault(case, outcome)
                    self.progress()

    @contextlib.contextmanager
    def _failing(self, where: str) -> Iterator[None]:
        try:
            yield
        except JudgeFailed as error:
            raise CampaignFailed(f"the harness failed on case {error.case!r:.400}") from error
        except Exception as error:
            raise CampaignFailed(f"the harness failed {where}") from error

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
        """A failing case: if its signature is new, minimised, saved and reported.

        A fault that was seen is never lost: what interrupts this (Ctrl-C, closed output, a defect) goes on up, and the finding
        is saved and reported as it is then. Raises `CampaignOver` when it is the last one that the budget allows.
        """
        finding = self._finding(case, outcome)
        if finding.signature in self.findings:
            return
        if outcome.verdict is Verdict.HANG and self._is_known_to_hang():  # elsewhere, and this case was given less time
            outcome = self.judge.judge(case)
            finding = self._finding(case, outcome)
            if not outcome.is_fault or finding.signature in self.findings:
                return
        if outcome.verdict is Verdict.EAGER_ERROR and outcome.blame.location is None:  # the device was lost, and its line too
            outcome = self.judge.judge(case, outcome.label)
            finding = self._finding(case, outcome)
            if not outcome.is_fault or finding.signature in self.findings:
                return
        asked: Asked = {True: [], False: []}
        try:
            self._say(Minimising(finding.outcome.label))
            minimal, note = self._minimised(finding, asked)
        except BaseException as error:
            self._keep(finding, _cut_short(error))
            raise
        trace: OpTrace | str | None = None
        try:
            mended, problem = self._mended(minimal, case, asked)
            minimal, note = replace(minimal, mended=mended), note or problem
            if self._extras.heat:
                minimal = replace(minimal, heat=self._heat(minimal))
            if self._extras.trace:
                trace = self._trace(minimal)
        except BaseException as error:
            self._keep(minimal, note, f"not taken: {_ended_by(error)}")
            raise
        self._keep(minimal, note, trace)
        if self.budget.max_findings is not None and len(self.findings) >= self.budget.max_findings:
            raise CampaignOver

    # -- one finding ---------------------------------------------------------------------------------------------------

    def _minimised(self, found: Finding, asked: Asked) -> tuple[Finding, str | None]:
        """The finding with its smallest case and the axes that matter, and a note where time ran out before they were known.

        `asked` is given every case that was judged on the way.
        """

        def ask(case: Case, label: str, seconds: float | None) -> Outcome:
            self._interrupts.check()
            outcome = self.judge.judge(case, label, seconds)
            asked[outcome.label == label].append(case)
            return outcome

        return reduced(self.subject.target, found, ask, self._seconds_for)

    def _mended(self, finding: Finding, found: Case, asked: Asked) -> tuple[Mended | None, str | None]:
        """An edit that mends the fault, if one is found soon; and what went wrong in the search."""
        if finding.flaky or not can_be_mended(self.subject, finding.outcome):
            return None, None
        seconds = self._seconds_for(MEND_SECONDS)
        if seconds <= 0:
            return None, None
        self._interrupts.check()
        others = [*asked[True][-MEND_CASES:], *asked[False][-MEND_CASES:]]
        try:
            return self.judge.mend([finding.case, found, *others], seconds), None
        except JudgeFailed as error:  # it costs the finding its edit, and not the run its findings
            return None, f"capfuzz failed in the search for an edit that mends it: {error}"

    def _heat(self, finding: Finding) -> HeatMap | str:
        if finding.flaky or not finding.axes:
            return "the fault does not show every time" if finding.flaky else "the axes were not varied"
        seconds = seconds_of(finding.outcome)

        def shown(candidate: Case) -> Cell:
            self._interrupts.check()
            again = self.judge.judge(candidate, finding.outcome.label, seconds)
            if not again.is_fault:
                return Cell.HOLDS
            return Cell.FAILS if signature(finding.target, again) == finding.signature else Cell.OTHER

        target = self.subject.target
        return heat_map(target, finding.case, finding.axes, shown, self._seconds_for(HEAT_SECONDS))

    def _trace(self, finding: Finding) -> OpTrace | str:
        self._interrupts.check()
        if isinstance(self.subject.function, Runner):
            return "the implementation makes its graphs itself, out of sight"
        seconds = max(LEAST_TRACE_SECONDS, self._seconds_for(seconds_of(finding.outcome) or TRACE_SECONDS))
        try:
            return self.judge.trace(finding.case, seconds)
        except JudgeFailed as error:  # it costs the report its trace, and not the run its findings
            return f"capfuzz failed to take it: {error}"

    def _is_known(self, finding: Finding) -> bool:
        """Without its line a fault has another name; one of the same kind as a known one is not to be saved twice."""
        labels = {known.outcome.label for known in self.findings.values()}
        return finding.signature in self.findings or (finding.blame is None and finding.outcome.label in labels)

    def _finding(self, case: Case, outcome: Outcome) -> Finding:
        subject = self.subject
        return Finding(
            subject.target.name,
            subject.label,
            case,
            outcome,
            signature(subject.target.name, outcome),
            self.seed,
            self.judge.name,
            self.engine,
        )

    def _keep(self, finding: Finding, note: str | None, trace: OpTrace | str | None = None) -> None:
        """Saves and reports a finding; from here on its fault is known."""
        self.findings[finding.signature] = finding
        path, is_new, problem = None, True, None
        if self.corpus is not None:
            try:
                path, is_new = corpora.save(self.corpus, finding.signature, corpora.from_finding(finding))
            except corpora.CorpusError as error:
                problem = str(error)
        self._say(Found(finding, path, is_new, problem, note, trace))

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _seconds_for(self, most: float) -> float:
        """`most`, or what is left of the budget where that is less."""
        return most if self.budget.max_time is None else min(most, self.budget.max_time - self.seconds)

    def _is_spent(self) -> bool:
        return self.budget.max_time is not None and self.seconds >= self.budget.max_time

    def _is_known_to_hang(self) -> bool:
        return any(finding.outcome.verdict is Verdict.HANG for finding in self.findings.values())

    def _cover(self, case: Case) -> None:
        if self._drawn is not None:
            self._drawn.add(case)
        self._covered.setdefault("batch", set()).add(self.subject.target.batch(case))
        for name, value in case.values.items():
            self._covered.setdefault(name, set()).add(value)
        self._covered.setdefault("changed inputs", set()).add(len(case.steps) - 1)

    def _say(self, event: Event) -> None:
        self._emit(event)


def _cut_short(error: BaseException) -> str:
    return f"not minimised: {_ended_by(error)}"


def _ended_by(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "capfuzz was stopped by an error"


def _text(error: BaseException) -> str:
    cause = f": {type(error.__cause__).__name__}: {error.__cause__}" if isinstance(error, CampaignFailed) else ""
    return f"{str(error) or type(error).__name__}{cause}"
