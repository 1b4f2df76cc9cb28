"""The finding of every registered fault: its blame line is the faulty line, and its case cannot be lowered by one step."""

from __future__ import annotations

import inspect
from functools import cache

import pytest

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import Device
from capfuzz.differential import Outcome, Runner, Verdict
from capfuzz.findings import signature
from capfuzz.findings.finding import source_line
from capfuzz.findings.minimise import StillFails, minimise
from capfuzz.targets import Case, Target, targets, variant
from capfuzz.targets.mending import Mended, can_be_mended, mend
from capfuzz.workers import InProcess
from tests.quality.faulty_lines import ELSEWHERE, EXACT, MADE_ABOVE, MENDED
from tests.quality.one_step import one_step_lower

TARGETS = targets()
FAULTS = {f"{target.name}.{name}": (target, name) for target in TARGETS.values() for name in target.variants}
SEED = 3


@cache
def cases_of(target: str, count: int) -> list[Case]:
    return drawn(TARGETS[target].strategy(), count, SEED)


def first_failing(judge: InProcess, target: Target, label: str) -> tuple[Case, Outcome]:
    """The first case of the seed that shows the fault; few are drawn at first, since that is enough for most faults."""
    for count in (200, 2000):
        for case in cases_of(target.name, count):
            outcome = judge.judge(case, label)
            if outcome.label == label:
                return case, outcome
    raise AssertionError(f"{label} was not found from seed {SEED}")


def written_as(fault: str) -> str:
    """The line that the finding of a fault must name."""
    exact = {**EXACT, **MENDED}
    if fault in exact:
        return exact[fault]
    return MADE_ABOVE[fault][0] if fault in MADE_ABOVE else ELSEWHERE[fault][1]


def is_line(text: str, written: str) -> bool:
    return text.startswith(written.removesuffix("...")) if written.endswith("...") else text == written


def with_function(written: str, variant: str) -> tuple[str, str]:
    """The function and the line that a table names; a comprehension counts for the function that it is in."""
    function, colon, line = written.partition(": ")
    return (function, line) if colon and function.isidentifier() else (variant, written)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_finding_names_the_faulty_line_and_its_case_is_minimal(device: Device, fault: str) -> None:
    target, name = FAULTS[fault]
    judge, label = InProcess(device, variant(target, name)), target.variants[name].label
    begin, found = first_failing(judge, target, label)
    name_of_fault = signature(target.name, found)

    def still_fails(case: Case) -> bool:
        again = judge.judge(case, label)
        return again.label == label and signature(target.name, again) == name_of_fault

    best = minimise(target, begin, still_fails, max_seconds=120)
    assert best.complete
    outcome = judge.judge(best.case, label)
    mended = mended_by(target, name, begin, best.case, outcome)
    assert mended is not None or fault not in MENDED
    blame = source_line(outcome) if mended is None else mended.location
    assert blame is not None
    function, line = with_function(written_as(fault), name)
    assert is_line(blame.text, line), f"{blame.function}: {blame.text}"
    assert blame.function in (function, "<dictcomp>", "<listcomp>")
    assert lowerable(target, best.case, still_fails) == []


def mended_by(target: Target, name: str, begin: Case, best: Case, outcome: Outcome) -> Mended | None:
    subject = variant(target, name)
    if not can_be_mended(subject, outcome):
        return None
    return mend(subject, [best, begin, *cases_of(target.name, 200)[:80]], 60)


def lowerable(target: Target, case: Case, still_fails: StillFails) -> list[Case]:
    return [lower for lower in one_step_lower(target, case) if still_fails(lower)]


# -- the tables --------------------------------------------------------------------------------------------------------


def test_every_registered_fault_has_its_line_in_one_table() -> None:
    tables = [*EXACT, *MENDED, *MADE_ABOVE, *ELSEWHERE]
    assert len(tables) == len(set(tables))
    assert set(tables) == set(FAULTS)


def test_at_least_95_of_100_name_the_faulty_line() -> None:
    assert len(EXACT) + len(MENDED) >= 0.95 * len(FAULTS)


@pytest.mark.parametrize("fault", MADE_ABOVE)
def test_the_wrong_value_is_made_above_the_line_that_is_named(fault: str) -> None:
    """Both are lines of the same function, and it is a wrong answer that they are about."""
    target, name = FAULTS[fault]
    named, made = MADE_ABOVE[fault]
    function, line = with_function(named, name)
    source = function_of(target, function)
    assert number_of(source, made) < number_of(source, line, last=True)
    verdict = target.variants[name].verdict
    of_runner = isinstance(target.variants[name].function, Runner)
    assert verdict is Verdict.REFERENCE_MISMATCH or (of_runner and verdict is Verdict.DIVERGENCE)


@pytest.mark.parametrize("fault", ELSEWHERE)
def test_a_faulty_line_that_is_not_named_is_there_and_says_why(fault: str) -> None:
    target, name = FAULTS[fault]
    faulty, named, why = ELSEWHERE[fault]
    number_of(function_of(target, with_function(faulty, name)[0]), with_function(faulty, name)[1])
    assert faulty != named
    assert len(why) > 40


def function_of(target: Target, name: str) -> list[str]:
    """The lines of a function of the target's module."""
    lines = inspect.getsource(inspect.getmodule(target.build)).splitlines()  # type: ignore[arg-type]
    [begin] = [number for number, line in enumerate(lines) if line.startswith(f"def {name}(")]
    length = next(n for n, line in enumerate([*lines[begin + 1 :], "end"]) if line[:1] not in ("", " ", ")"))
    return [line.strip() for line in lines[begin : begin + 1 + length]]


def number_of(lines: list[str], written: str, last: bool = False) -> int:
    found = [number for number, line in enumerate(lines) if line.startswith(written.removesuffix("..."))]
    assert found, f"there is no line {written!r}"
    return found[-1] if last else found[0]
