"""Which outside memory a graph on the simulated device needs, and who else keeps it alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import capfuzz
from capfuzz.devices.errors import DanglingBufferError


@pytest.fixture(autouse=True)
def sim() -> Iterator[None]:
    with capfuzz.sim():
        yield


def captured(body: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = body()
    return graph, result


@pytest.mark.parametrize(
    "make",
    [
        torch.zeros_like,
        torch.ones_like,
        torch.empty_like,
        torch.rand_like,
        lambda x: torch.full_like(x, 3),
        lambda x: torch.randint_like(x, 9),
        lambda x: x.new_zeros(2),
        lambda x: x.new_full((2, 3), 7),
        lambda x: x.new_ones(4),
        lambda x: x.new_empty(4),
        lambda x: x[1:].shape,
    ],
)
def test_what_a_tensor_was_made_like_may_go(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    like = torch.arange(4.0, device="cuda")
    other = torch.arange(4.0, device="cuda")
    graph, (made, _) = captured(lambda: (make(like), other + 1))
    like = None
    graph.replay()
    if isinstance(made, torch.Tensor) and make in (torch.zeros_like, torch.ones_like):
        assert made.tolist() == [float(make is torch.ones_like)] * 4


@pytest.mark.parametrize("replayed_first", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_another_graph_keeps_no_memory_alive(which: int, replayed_first: bool) -> None:
    table = torch.arange(4, device="cuda")
    graphs = [captured(lambda: table + 1)[0], captured(lambda: table * 2)[0]]
    if replayed_first:
        for graph in graphs:
            graph.replay()
    table = None
    with pytest.raises(DanglingBufferError):
        graphs[which].replay()


def test_a_graph_that_was_captured_after_another_replayed_keeps_no_memory_alive() -> None:
    table = torch.arange(4, device="cuda")
    first, _ = captured(lambda: table + 1)
    first.replay()
    second, _ = captured(lambda: table * 2)
    table = None
    with pytest.raises(DanglingBufferError):
        first.replay()
    with pytest.raises(DanglingBufferError):
        second.replay()


def test_memory_that_its_owner_holds_is_fine_when_another_graph_dies() -> None:
    table = torch.arange(4, device="cuda")
    first, _ = captured(lambda: table + 1)
    second, two = captured(lambda: table * 2)
    first.replay()
    second.replay()
    first.reset()
    second.replay()
    assert two.tolist() == [0, 2, 4, 6]
    table = None
    with pytest.raises(DanglingBufferError):
        second.replay()


@pytest.mark.parametrize("replayed_first", [True, False])
def test_what_a_dead_graph_owned_is_outside_memory_of_the_others(replayed_first: bool) -> None:
    table = torch.arange(4, device="cuda")
    first, made = captured(lambda: table + 1)
    second, two = captured(lambda: made * 2)
    first.replay()
    if replayed_first:
        second.replay()
    first.reset()
    second.replay()
    assert two.tolist() == [2, 4, 6, 8]
    made = None
    with pytest.raises(DanglingBufferError):
        second.replay()
