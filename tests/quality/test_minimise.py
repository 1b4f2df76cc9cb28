"""Exactly which minimum comes out, and within how many checks, whatever the case that minimising begins with."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from capfuzz.differential import Schedule
from capfuzz.findings.minimise import StillFails, default_passes, lower_values, minimise
from capfuzz.targets import Case, InvalidCaseError, Target, get_target

TARGET = get_target("fold_indptr")
CASES = TARGET.strategy()


def is_valid(case: Case) -> bool:
    try:
        TARGET.feeds(case)
    except InvalidCaseError:
        return False
    return True


def lengths(case: Case, step: int = 0) -> list[int]:
    rows = case.steps[step]["lengths"]
    assert isinstance(rows, list)
    return rows


def case(
    rows: list[list[int]], *, fold_factor: int = 1, dtype: str = "int32", layout: str = "contiguous", start: int = 0
) -> Case:
    steps: list[dict[str, int | list[int]]] = [{"lengths": step, "start": start} for step in rows]
    return Case({"fold_factor": fold_factor, "dtype": dtype, "layout": layout}, steps)


def big_case(seed: int) -> Case:
    """A large case, another one for each seed."""
    rows = [[9, *((seed * 7 + row * step) % 11 for row in range(40 + seed))] for step in range(1, 4)]
    return case(rows, fold_factor=5 + seed % 11, dtype="int64", layout="column", start=100 + seed)


FAULTS: dict[str, tuple[StillFails, Case]] = {
    "always": (lambda c: True, case([[]])),
    "batch of two": (lambda c: len(lengths(c)) >= 2, case([[0, 0]])),
    "a fold factor above three": (lambda c: int(c.values["fold_factor"]) > 3, case([[]], fold_factor=4)),
    "int64 in a column": (
        lambda c: c.values["dtype"] == "int64" and c.values["layout"] == "column",
        case([[]], dtype="int64", layout="column"),
    ),
    "start above 17": (lambda c: int(c.steps[0]["start"]) > 17, case([[]], start=18)),  # type: ignore[arg-type]
    "a changed row": (
        lambda c: any(lengths(c, step) != lengths(c) for step in range(len(c.steps))),
        case([[0], [1]]),
    ),
    "four axes": (
        lambda c: (
            len(lengths(c)) >= 3
            and int(c.values["fold_factor"]) >= 2
            and c.values["layout"] != "contiguous"
            and len(c.steps) >= 2
            and lengths(c, 1)[0] >= 5
        ),
        case([[0, 0, 0], [5, 0, 0]], fold_factor=2, layout="offset"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seed", range(40))
def test_the_exact_minimum_from_every_seed_within_200_checks(name: str, seed: int) -> None:
    still_fails, expected = FAULTS[name]
    begin = big_case(seed)
    assert still_fails(begin)
    best = minimise(TARGET, begin, still_fails)
    got = best.case
    if name == "a changed row":  # which of the two steps has the one is a matter of how it began
        assert sorted(lengths(got, step) for step in range(2)) == [[0], [1]]
        assert got.values == expected.values
    else:
        assert got == expected
    assert best.complete
    assert best.checks <= 200


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(CASES, st.integers(0, 2**32))
def test_every_pass_keeps_what_it_promises(begin: Case, salt: int) -> None:
    """For an arbitrary (but fixed) fault no candidate of any pass still fails at the end: no axis can go one step lower."""

    def still_fails(candidate: Case) -> bool:
        total = sum(map(sum, (lengths(candidate, s) for s in range(len(candidate.steps)))))
        wanted = salt % 5
        return len(lengths(candidate)) >= wanted and (total >= salt % 3 or len(candidate.steps) == 1)

    if not still_fails(begin):
        return
    best = minimise(TARGET, begin, still_fails)
    assert still_fails(best.case)
    assert is_valid(best.case)
    for step in default_passes():
        for candidate in step.candidates(TARGET, best.case):
            assert candidate == best.case or not is_valid(candidate) or not still_fails(candidate), (
                f"{step.name} could go on to {candidate}"
            )


@given(st.integers(-50, 10**12), st.integers(-50, 50))
def test_lower_values_go_from_the_least_to_one_less(value: int, least: int) -> None:
    candidates = list(lower_values(value, least))
    if value <= least:
        assert candidates == []
        return
    assert candidates[0] == least
    assert value - 1 in candidates
    assert all(least <= candidate < value for candidate in candidates)
    assert len(candidates) <= 4 + 3 * math.log2(value - least)


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_a_threshold_is_found_exactly_in_three_candidates_a_bit(threshold: int, above: int) -> None:
    value, asked = threshold + above, set()
    while True:
        lower = next((c for c in lower_values(value, 0) if c not in asked and not asked.add(c) and c >= threshold), None)
        if lower is None:
            break
        value = lower
    assert value == threshold
    assert len(asked) <= 4 + 3 * (threshold + above).bit_length()


def test_half_of_a_value_is_tried_for_a_fault_that_larger_ones_may_not_show() -> None:
    best = minimise(TARGET, case([[7]]), lambda c: lengths(c) in ([7], [3]))
    assert best.case == case([[3]])


@pytest.mark.parametrize("needed", ["none", "twin", "bucket", "value"])
def test_the_simplest_other_graph_that_will_do(needed: str) -> None:
    order = ["none", "twin", "bucket", "value"]
    begin = case([[]]).with_schedule(Schedule(second="value", axis="dtype", second_dies=True))
    best = minimise(TARGET, begin, lambda c: order.index(c.schedule.second) >= order.index(needed))
    assert best.case.schedule == Schedule(second=needed, axis="dtype" if needed == "value" else None)  # type: ignore[arg-type]


def test_no_case_is_asked_twice_and_none_is_invalid() -> None:
    asked: list[Case] = []

    def still_fails(candidate: Case) -> bool:
        asked.append(candidate)
        return len(lengths(candidate)) >= 2

    minimise(TARGET, big_case(3), still_fails)
    assert all(map(is_valid, asked))
    assert len({repr(c) for c in asked}) == len(asked)


def test_time_that_runs_out_still_gives_a_failing_case() -> None:
    best = minimise(TARGET, big_case(3), lambda c: len(lengths(c)) >= 2, max_seconds=0)
    assert not best.complete
    assert best.case == big_case(3)


def test_a_target_without_rows_is_minimised_too() -> None:
    flat = Target(
        name="flat",
        summary="",
        implementation=lambda: None,
        reference=lambda: None,
        fixed=TARGET.fixed[:1],
        stepped=(),
        draw=lambda: st.nothing(),
        build=lambda case: [{}],
    )
    best = minimise(flat, Case({"fold_factor": 9}, [{}]), lambda c: int(c.values["fold_factor"]) > 4)
    assert best.case == Case({"fold_factor": 5}, [{}])


def test_hypothesis_finds_what_the_passes_find() -> None:
    """The strategy can itself draw the minimum that the passes reach, so the two agree on what is simplest."""
    found = find(
        CASES,
        lambda c: len(lengths(c)) >= 2 and c.values["dtype"] == "int64",
        settings=settings(max_examples=2000, database=None, phases=[Phase.generate, Phase.shrink], deadline=None),
    )
    assert len(lengths(found)) == 2
