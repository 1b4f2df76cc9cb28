"""Graphs that the implementation captures by itself, on the real device, without a GPU: the CPU stands in for one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from capfuzz.devices import poison
from capfuzz.devices.cuda.user_graphs import UserGraphs
from capfuzz.devices.errors import DanglingBufferError


class StandInGraph:
    """Captures and replays nothing, and counts."""

    captured = 0
    replayed = 0

    def capture_begin(self, pool: object = None) -> None:
        self.captured += 1
        if pool == "taken":
            raise RuntimeError("the pool is taken")

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        self.replayed += 1


@pytest.fixture
def user_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[UserGraphs]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandInGraph)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with UserGraphs() as graphs:
        yield graphs
    assert StandInGraph.replay.__qualname__ == "StandInGraph.replay"


def begun() -> StandInGraph:
    graph = StandInGraph()
    graph.capture_begin()
    return graph


def test_a_replay_through_freed_memory_is_refused_at_the_line_that_used_it(user_graphs: UserGraphs) -> None:
    table = torch.arange(5)
    graph = begun()
    out = table + 1
    graph.capture_end()
    graph.replay()
    del table
    with pytest.raises(DanglingBufferError) as caught:
        graph.replay()
    assert (graph.replayed, out.tolist()) == (1, [1, 2, 3, 4, 5])
    assert caught.value.location is not None
    assert caught.value.location.text == "out = table + 1"


@pytest.mark.parametrize("grows", [lambda table: table.resize_(4096), lambda table: table.untyped_storage().resize_(0)])
def test_a_buffer_that_grows_frees_the_memory_that_the_graph_uses(user_graphs: UserGraphs, grows: Any) -> None:
    """Its storage stays, and a kernel has no storages."""
    table = torch.arange(5)
    graph = begun()
    _ = table + 1
    graph.capture_end()
    table.resize_(3)
    graph.replay()
    grows(table)
    with pytest.raises(DanglingBufferError):
        graph.replay()
    assert graph.replayed == 1


def test_another_graphs_memory_is_no_outside_memory_while_that_lives(user_graphs: UserGraphs) -> None:
    table = torch.arange(3)
    first = begun()
    held = table * 2
    first.capture_end()
    second = begun()
    held.add_(1)
    second.capture_end()
    del held
    second.replay()
    third = begun()
    table.add_(1)
    third.capture_end()
    del first, table
    gc.collect()
    with pytest.raises(DanglingBufferError):
        third.replay()


def test_captured_anew_it_uses_what_the_new_capture_used(user_graphs: UserGraphs) -> None:
    table, other = torch.arange(3), torch.arange(3)
    graph = begun()
    table.add_(1)
    graph.capture_end()
    del table
    graph.capture_begin()
    other.add_(1)
    graph.capture_end()
    graph.replay()


def test_what_a_capture_leaves_unwritten_is_poisoned_when_it_has_ended(user_graphs: UserGraphs) -> None:
    graph = begun()
    kept = torch.empty(3, dtype=torch.int64)
    kept.fill_(1)
    assert kept.tolist() == [1, 1, 1]
    graph.capture_end()
    assert kept.tolist() == [poison.value(torch.int64, poison.CAPTURE)] * 3


def test_a_capture_that_is_refused_or_never_ended_leaves_no_mode(user_graphs: UserGraphs) -> None:
    with pytest.raises(RuntimeError, match="taken"):
        StandInGraph().capture_begin("taken")
    assert _get_current_dispatch_mode() is None
    begun()
    assert _get_current_dispatch_mode() is not None
    user_graphs.abandon()
    assert _get_current_dispatch_mode() is None


def test_a_graph_of_the_devices_own_is_left_alone(user_graphs: UserGraphs) -> None:
    graph = user_graphs.own_graph()
    graph.capture_begin()
    assert _get_current_dispatch_mode() is None
    graph.capture_end()
    graph.replay()
    assert (graph.captured, graph.replayed) == (1, 1)
