"""Values that a kernel was not made for: the device asserts, and in a capture, where nothing runs, nothing asserts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import capfuzz
from capfuzz.devices.errors import rule_of
from capfuzz.devices.sim import recorded_calls
from capfuzz.devices.sim.capture import Capture
from tests.asserting_ops import USES, Use, outcome, values

uses = pytest.mark.parametrize("use", USES.values(), ids=USES)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with capfuzz.sim():
        yield


def captured(use: Use, static: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        use.call(static)
    return graph


@uses
def test_eager_code_does_what_an_h200_did(use: Use) -> None:
    assert outcome(lambda: use.call(values(use, "good"))) == "ran"
    assert outcome(lambda: use.call(values(use, "bad"))) == use.eager


@pytest.mark.parametrize("which", ["good", "bad"])
@uses
def test_a_capture_and_its_replay_do_what_an_h200_did(use: Use, which: str) -> None:
    static = values(use, which)
    if use.capture != "ran":
        with pytest.raises(RuntimeError) as caught:
            captured(use, static)
        assert rule_of(caught.value).value == use.capture
        return
    graph = captured(use, static)
    assert static.tolist() == values(use, which).tolist()
    static.copy_(values(use, "bad"))
    assert outcome(graph.replay) == use.replay
    static.copy_(values(use, "good"))
    assert outcome(graph.replay) == "ran"


@pytest.mark.parametrize("use", [use for use in USES.values() if use.capture == "ran"])
def test_a_call_that_is_recorded_whole_asserts_as_its_ops_do(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capture, "by_call", True)
    monkeypatch.setattr(recorded_calls, "_known", {})
    static = values(use, "good")
    for _ in range(2):  # the first teaches
        graph = captured(use, static)
        assert outcome(graph.replay) == "ran"
    static.copy_(values(use, "bad"))
    assert outcome(graph.replay) == use.replay


def test_work_beside_a_capture_asserts() -> None:
    outside = torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"):
        torch.zeros(1, device="cuda")
        with torch.cuda.stream(outside), pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            torch._assert_async(torch.zeros(1, device="cuda"))


def test_what_shapes_alone_forbid_is_refused_by_the_host() -> None:
    x, flags = torch.arange(4, device="cuda"), torch.ones(3, device="cuda")
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        x[9]
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.index_select(3, x)
    with pytest.raises(RuntimeError, match="more than one value"):
        torch._assert_async(flags)
    with pytest.raises(RuntimeError, match="more than one value"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch._assert_async(flags)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        flags[:1].expand(2).index_add_(0, x[:2], flags[:2])


def test_what_dtypes_alone_forbid_is_refused_by_the_host() -> None:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        F.nll_loss(torch.ones(4, 6, device="cuda"), torch.zeros(4, device="cuda"))
    assert not isinstance(caught.value, torch.AcceleratorError)


def test_a_draw_that_the_host_refuses_is_no_assert() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator") as caught:
        torch.bernoulli(torch.ones(2, device="cuda"), generator=torch.Generator())
    assert not isinstance(caught.value, torch.AcceleratorError)


def test_asking_who_complains_draws_no_number() -> None:
    state = torch.get_rng_state()
    with pytest.raises(torch.AcceleratorError):
        torch.bernoulli(torch.full((2,), 2.0, device="cuda"))
    assert torch.equal(torch.get_rng_state(), state)


def test_repeats_do_not_write_beyond_their_end() -> None:
    """Their sum is right, and the CPU's kernel meets the negative one when it has written too much."""
    use = USES["repeats_alone_negative"]
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        use.call(torch.tensor([4000, -3996, 0], device="cuda"))


@pytest.mark.parametrize(("ends", "expected"), [([0, 16], "ran"), ([8, 8], "ran"), ([16, 8], "assert"), ([-8, 16], "assert")])
def test_groups_end_in_order(ends: list[int], expected: str) -> None:
    grouped = USES["grouped_mm"].call
    assert outcome(lambda: grouped(torch.tensor(ends, device="cuda"))) == expected


def test_on_the_host_the_host_refuses() -> None:
    with pytest.raises(IndexError):
        torch.arange(4)[torch.tensor([9])]
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        torch._assert_async(torch.zeros(1))
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        torch.repeat_interleave(torch.tensor([1, -1, 4]), output_size=4)
