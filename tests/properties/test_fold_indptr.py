"""fold_indptr: its cases, its reference, and the thirty combinations of the aiter review."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from capfuzz.devices import Device, open_device
from capfuzz.devices.layout import Argument
from capfuzz.differential import check
from capfuzz.targets import Case, get_target

TARGET = get_target("fold_indptr")
RELAXED = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def fold_by_hand(indptr: list[int], fold_factor: int) -> list[int]:
    """The definition, as a loop over Python integers."""
    out = [0]
    for before, after in itertools.pairwise(indptr):
        for _ in range(fold_factor):
            out.append(out[-1] + after - before)
    return out


@RELAXED
@given(TARGET.strategy())
def test_every_drawn_case_is_valid_and_survives_json(case: Case) -> None:
    feeds = TARGET.feeds(case)
    assert len(feeds) == len(case.steps) >= 2
    assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case


@RELAXED
@given(TARGET.strategy())
def test_the_reference_is_the_definition(case: Case) -> None:
    for feed in TARGET.feeds(case):
        indptr, fold_factor = feed["indptr"], feed["fold_factor"]
        assert isinstance(indptr, Argument)
        assert isinstance(fold_factor, int)
        assert TARGET.reference(indptr=indptr.array, fold_factor=fold_factor).tolist() == fold_by_hand(
            indptr.array.tolist(), fold_factor
        )


@RELAXED
@given(TARGET.strategy())
def test_inputs_are_what_the_case_says(case: Case) -> None:
    for feed, step in zip(TARGET.feeds(case), case.steps, strict=True):
        indptr = feed["indptr"]
        assert isinstance(indptr, Argument)
        assert indptr.array.dtype == np.dtype(str(case.values["dtype"]))
        assert indptr.array[0] == step["start"]
        assert np.diff(indptr.array).tolist() == step["lengths"]


def test_the_strategy_reaches_every_common_value_and_the_empty_batch() -> None:
    seen: dict[str, set[object]] = {"batch": set(), "fold_factor": set(), "dtype": set(), "layout": set(), "steps": set()}

    @settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(TARGET.strategy())
    def draw(case: Case) -> None:
        seen["batch"].add(TARGET.batch(case))
        seen["steps"].add(len(case.steps))
        for name, value in case.values.items():
            seen[name].add(value)

    draw()
    assert {0, 1, 2, 8, 37, 129} <= seen["batch"]
    assert {1, 2, 3, 8, 16} <= seen["fold_factor"]
    assert seen["dtype"] == {"int32", "int64"}
    assert seen["layout"] == {"contiguous", "offset", "strided", "column"}
    assert {2, 3} <= seen["steps"]


def reviewed_case(batch: int, fold_factor: int) -> Case:
    rows = [[1 + row % 5 for row in range(batch)], [row % 3 for row in range(batch)]]
    steps: list[dict[str, int | list[int]]] = [{"lengths": lengths, "start": 0} for lengths in rows]
    return Case({"fold_factor": fold_factor, "dtype": "int32", "layout": "contiguous"}, steps)


@pytest.mark.parametrize("batch", [0, 1, 2, 8, 37, 129])
@pytest.mark.parametrize("fold_factor", [1, 2, 3, 8, 16])
@pytest.mark.parametrize(
    ("implementation", "verdict"), [("shipped", "equivalent"), ("scalar_store", "capture_error:host_copy")]
)
def test_the_combinations_of_the_aiter_review(
    device: Device, batch: int, fold_factor: int, implementation: str, verdict: str
) -> None:
    function = TARGET.implementation if implementation == "shipped" else TARGET.variants[implementation].function
    feeds = TARGET.feeds(reviewed_case(batch, fold_factor))
    assert check(device, function, feeds, TARGET.reference).label == verdict


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(TARGET.strategy())
def test_the_shipped_implementation_is_equivalent(case: Case) -> None:
    with open_device("sim") as device:
        assert check(device, TARGET.implementation, TARGET.feeds(case), TARGET.reference).label == "equivalent"
