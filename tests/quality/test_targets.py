"""Every target: its cases are legal, its shipped op is right, its laws can fail, and each registered fault is found."""

from __future__ import annotations

import msgspec
import pytest

from capfuzz.campaign.audit import audit_mutants, search
from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.campaign.stats import Drawn
from capfuzz.devices import Device
from capfuzz.differential import Verdict
from capfuzz.targets import Case, InvalidCaseError, Target, Variant, shipped, targets, variant
from capfuzz.workers import InProcess

TARGETS = targets()
FAULTS = [(target, fault) for target in TARGETS.values() for fault in target.variants.values()]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_shipped_implementation_is_right_and_its_cases_are_legal(device: Device, target: Target) -> None:
    judge = InProcess(device, shipped(target))
    for case in drawn(target.strategy(), 300, 7):
        assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case
        outcome = judge.judge(case)
        assert outcome.label == "equivalent", f"{outcome}\n{case}"


@pytest.mark.parametrize(("target", "fault"), FAULTS, ids=[f"{t.name}-{f.name}" for t, f in FAULTS])
@pytest.mark.parametrize("seed", [11])
def test_every_fault_is_found_with_its_verdict_and_no_other(device: Device, target: Target, fault: Variant, seed: int) -> None:
    found = search(target, fault.label, InProcess(device, variant(target, fault.name)), seed, 2000)
    assert found.instead is None
    assert found.cases is not None


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_target_says_what_it_is(target: Target) -> None:
    assert len(target.summary) > 20
    assert len(target.variants) >= 4
    assert len({fault.label for fault in target.variants.values()}) >= 3
    for fault in target.variants.values():
        assert fault.source, fault.name
        assert fault.summary.endswith("."), fault.name
        assert fault.verdict is not Verdict.EQUIVALENT
    for name, law in target.laws.items():
        assert law.__doc__, name


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_value_of_every_axis_is_drawn(target: Target) -> None:
    cases = drawn(target.strategy(), 2000, 3)
    for axis in target.fixed:
        assert {case.values[axis.name] for case in cases} >= set(axis.common), axis.name
    if any(target.batch(case) for case in cases):
        assert {target.batch(case) for case in cases} >= {0, 1, 2, 37}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_mechanical_mutants_are_found_or_known_to_be_equivalent(device: Device, target: Target) -> None:
    grown = audit_mutants(target, 0, 2000, lambda subject: InProcess(device, subject))
    assert grown.count >= 2
    assert grown.share >= 0.95, [f"{mutant.name}: {mutant.text}" for mutant in grown.unexplained]
    survivors = {mutant.name for mutant in grown.survivors}
    assert set(target.equivalent_mutants) <= survivors, "a mutant that is found is not equivalent"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_value_and_every_pair_that_a_target_claims_is_drawn(target: Target) -> None:
    counts = Drawn(target)
    cases = drawn(target.strategy(), 2000, 5)
    for case in cases:
        counts.add(case)
    assert not list(counts.missing_values())
    assert not [pair for pair in counts.missing_pairs() if is_legal(target, cases[:50], *pair)]


def is_legal(target: Target, cases: list[Case], a: str, x: int | str, b: str, y: int | str) -> bool:
    """Whether the target accepts the two values together, in any of these cases."""
    for case in cases:
        try:
            target.feeds(case.with_value(a, x).with_value(b, y))
        except InvalidCaseError:
            continue
        return True
    return False
