"""What a target is: one op under test, with its axes, how inputs are built, its NumPy reference and its known faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from capfuzz.differential import SIMPLEST, SIMPLY, Drive, Feed, Implementation, Law, Reference, Verdict
from capfuzz.targets.axes import FixedAxis, RowsAxis, StepAxis, validate
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.generate import cases_of
from capfuzz.targets.schedules import larger_of, schedules_of, second_of, validate_schedule


@dataclass(frozen=True)
class Variant:
    """A known-faulty implementation: the verdict and cause that it must get, and where the fault was seen."""

    name: str
    function: Implementation
    verdict: Verdict
    cause: str | None
    source: str

    @property
    def summary(self) -> str:
        return (self.function.__doc__ or "").strip().splitlines()[0]

    @property
    def label(self) -> str:
        return f"{self.verdict.value}:{self.cause}" if self.cause else self.verdict.value


@dataclass(frozen=True)
class Target:
    """One metadata or fold op under test.

    `fixed` axes have one value a case, `stepped` axes one a step. `feeds` turns a valid case into the arguments of each step;
    `reference` computes the answer with NumPy, in another way than the op; None where eager is all there is to compare with.
    """

    name: str
    summary: str
    implementation: Implementation
    reference: Reference | None
    fixed: tuple[FixedAxis, ...]
    stepped: tuple[StepAxis, ...]
    build: Callable[[Case], Sequence[Feed]]
    draw: Callable[[], SearchStrategy[Case]] | None = None
    """How cases are drawn, where the axes' own way is not enough."""
    variants: dict[str, Variant] = field(default_factory=dict)
    laws: dict[str, Law] = field(default_factory=dict)
    equivalent_mutants: dict[str, str] = field(default_factory=dict)
    """Mechanical mutants that no case can tell from the shipped implementation, by name, each with the reason."""

    def strategy(self) -> SearchStrategy[Case]:
        """Hypothesis' strategy for cases: the single source of them, for every engine."""
        cases = self.draw() if self.draw is not None else cases_of(self.fixed, self.stepped)
        return st.tuples(cases, schedules_of(self.fixed)).map(lambda drawn: drawn[0].with_schedule(drawn[1]))

    def feeds(self, case: Case) -> Sequence[Feed]:
        """The arguments of every step. Raises `InvalidCaseError` for a case that this target does not accept."""
        validate(case, self.fixed, self.stepped)
        validate_schedule(case.schedule, self.fixed)
        return self.build(case)

    def drive(self, case: Case) -> Drive:
        """The case's schedule, with the inputs that it needs beside the case's own."""
        schedule = case.schedule
        if schedule == SIMPLEST:
            return SIMPLY
        second = None if schedule.second == "none" else self._first_legal(second_of(case, self.fixed, self.stepped))
        return Drive(schedule, second, self._first_legal([larger_of(case, self.stepped)]) if schedule.grows else None)

    def _first_legal(self, cases: Sequence[Case]) -> Feed | None:
        for case in cases:
            try:
                return self.feeds(case)[0]
            except InvalidCaseError:
                continue
        return None

    def batch(self, case: Case) -> int:
        for axis in self.stepped:
            if isinstance(axis, RowsAxis):
                rows = case.steps[0][axis.name]
                return len(rows) if isinstance(rows, list) else 0
        return 0

    def variant(
        self, verdict: Verdict, cause: str | None = None, source: str = "", name: str | None = None
    ) -> Callable[[Implementation], Implementation]:
        """Registers a faulty variant under its function's name, or another."""

        def register(function: Implementation) -> Implementation:
            own = name or str(getattr(function, "__name__", "variant"))
            if own in self.variants:
                raise ValueError(f"target {self.name} has two variants named {own}")
            self.variants[own] = Variant(own, function, verdict, cause, source)
            return function

        return register

    def law(self, function: Law) -> Law:
        """Registers a law under its function's name; its docstring says what it states."""
        self.laws[function.__name__] = function
        return function


@dataclass(frozen=True)
class Subject:
    """The implementation that a run or an entry is about: `shipped`, `variant:NAME` or `user:module:function`."""

    target: Target
    label: str
    function: Implementation
