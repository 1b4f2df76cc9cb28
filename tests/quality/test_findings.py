"""The whole way from a drawn case to the finding: which minimum a variant gets, and what it costs."""

from __future__ import annotations

import time

import pytest

from capfuzz.campaign import Budget, Campaign, hypothesis_engine
from capfuzz.campaign.events import Event, Found
from capfuzz.devices import Device
from capfuzz.findings import Finding
from capfuzz.targets import get_target, variant
from capfuzz.workers import InProcess

TARGET = get_target("fold_indptr")


def found_by(device: Device, name: str, seed: int, cases: int = 2000) -> tuple[Finding, int]:
    """The first finding of a variant, and how many cases it took."""
    events: list[Event] = []
    subject = variant(TARGET, name)
    campaign = Campaign(
        subject,
        InProcess(device, subject),
        events.append,
        engine="hypothesis",
        seed=seed,
        budget=Budget(max_examples=cases, max_findings=1),
        corpus=None,
    )
    hypothesis_engine.run(campaign)
    findings = [event.finding for event in events if isinstance(event, Found)]
    assert len(findings) == 1, f"{name} was not found from seed {seed} in {campaign.cases} cases"
    return findings[0], campaign.cases


@pytest.mark.parametrize("name", TARGET.variants)
@pytest.mark.parametrize("seed", range(10))
def test_every_variant_is_found_with_its_registered_verdict(device: Device, name: str, seed: int) -> None:
    finding, cases = found_by(device, name, seed)
    assert finding.outcome.label == TARGET.variants[name].label
    assert not finding.flaky
    assert cases <= 2000


# (batch, fold factor, dtype, layout, steps): the minimum of each variant, and no more than these checks
MINIMA: dict[str, tuple[int, int, str, str, int, int]] = {
    "scalar_store": (0, 1, "int32", "contiguous", 1, 60),
    "item_read": (0, 1, "int32", "contiguous", 1, 60),
    "host_lengths": (1, 1, "int32", "contiguous", 2, 60),
    "unwritten_head": (0, 1, "int32", "contiguous", 1, 60),
    "accumulating_workspace": (1, 1, "int32", "contiguous", 1, 60),
    "cached_tensor": (1, 1, "int32", "contiguous", 2, 60),
    "empty_batch": (0, 1, "int32", "contiguous", 1, 60),
    "stride_blind": (1, 1, "int32", "offset", 1, 60),
    "int32_wrap": (1, 1, "int64", "contiguous", 1, 200),
}


@pytest.mark.parametrize("name", TARGET.variants)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_minimum_of_every_variant(device: Device, name: str, seed: int) -> None:
    finding, _ = found_by(device, name, seed)
    batch, fold_factor, dtype, layout, steps, checks = MINIMA[name]
    case = finding.case
    assert (TARGET.batch(case), case.values["fold_factor"], case.values["dtype"], case.values["layout"]) == (
        batch,
        fold_factor,
        dtype,
        layout,
    )
    assert len(case.steps) == steps
    assert finding.checks <= checks


def test_the_aiter_fault_minimises_in_half_a_second(device: Device) -> None:
    """Batch 0, fold factor 1, no replay: its verdict needs nothing else. Timed as a whole, the check of 400 cases included."""
    begun = time.perf_counter()
    finding, _ = found_by(device, "scalar_store", 1)
    assert time.perf_counter() - begun < 10
    assert finding.axes["batch"].startswith("any")
    assert finding.axes["fold_factor"].startswith("any")
    assert finding.axes["replays"] == "needs no changed inputs"
    assert finding.blame is not None
    assert finding.blame.text == "out[0] = 0"


def test_the_axes_that_matter_are_named(device: Device) -> None:
    finding, _ = found_by(device, "int32_wrap", 1)
    assert finding.axes["dtype"] == "any (tried int64; int32 not legal with this case)"
    finding, _ = found_by(device, "empty_batch", 1)
    assert finding.axes["batch"].startswith("only 0 ")
