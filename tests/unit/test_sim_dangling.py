"""Which outside memory a graph on the simulated device needs, and who else keeps it alive."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import capfuzz
from capfuzz.devices import open_device
from capfuzz.devices.errors import DanglingBufferError
from capfuzz.devices.layout import Argument
from capfuzz.differential import Verdict, check


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


def _out_too_small(buffer: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.arange(4096, out=buffer)


GROWS: dict[str, Callable[[torch.Tensor], object]] = {
    "resize_": lambda buffer: buffer.resize_(4096),
    "out= too small": _out_too_small,
    "of its storage": lambda buffer: buffer.untyped_storage().resize_(1 << 16),
    "storage given up": lambda buffer: buffer.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("replayed_first", [True, False])
@pytest.mark.parametrize("name", GROWS)
def test_a_buffer_that_grows_frees_the_memory_that_the_graph_uses(name: str, replayed_first: bool) -> None:
    """Its storage stays, and a kernel has no storages."""
    buffer = torch.arange(4, device="cuda")
    graph, _ = captured(lambda: buffer + 1)
    if replayed_first:
        graph.replay()
    GROWS[name](buffer)
    with pytest.raises(DanglingBufferError, match="an outside buffer, int64"):
        graph.replay()


def test_a_buffer_that_grew_is_not_forgotten_when_another_graph_dies() -> None:
    buffer = torch.arange(4, device="cuda")
    first, _ = captured(lambda: buffer + 1)
    second, _ = captured(lambda: buffer * 2)
    first.replay()
    buffer.resize_(4096)
    second.reset()
    with pytest.raises(DanglingBufferError):
        first.replay()


def test_a_buffer_that_shrinks_or_grows_within_its_memory_stays_where_it_is() -> None:
    buffer = torch.arange(64, device="cuda")
    graph, out = captured(lambda: buffer + 1)
    buffer.resize_(8)
    graph.replay()
    buffer.resize_(64)
    graph.replay()
    assert out.tolist() == list(range(1, 65))


def test_a_buffer_that_grows_in_the_capture_has_the_memory_that_the_graph_uses() -> None:
    buffer = torch.arange(4, device="cuda")

    def grows() -> torch.Tensor:
        _out_too_small(buffer)
        return buffer + 1

    graph, out = captured(grows)
    graph.replay()
    assert out[-1].item() == 4096


def test_an_answer_that_was_read_back_may_grow_later() -> None:
    """What NumPy has seen can never grow: the check reads answers, and so must not show it the implementation's memory."""
    workspace: list[torch.Tensor] = []

    def grows(x: torch.Tensor) -> torch.Tensor:
        if not workspace:
            workspace.append(torch.empty(x.numel(), dtype=x.dtype, device=x.device))
        if workspace[0].numel() < x.numel():
            workspace[0].resize_(x.numel())
        return workspace[0][: x.numel()].copy_(x)

    with open_device("sim") as device:
        for size in (2, 5, 9):
            feed = {"x": Argument(np.arange(size))}
            assert check(device, grows, [feed, feed]).verdict is Verdict.EQUIVALENT


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "t_": lambda buffer: buffer.t_(),
    "resize_": lambda buffer: buffer.resize_(2),
    "set_": lambda buffer: buffer.set_(torch.full((5,), 7, device="cuda")),  # type: ignore[call-overload]
    "data": lambda buffer: setattr(buffer, "data", torch.full((5,), 7, device="cuda")),
}


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_keeps_the_shape_and_the_memory_that_it_was_captured_with(name: str, is_held: bool) -> None:
    """Whatever becomes of the tensor before the first replay; other memory is fine as long as somebody holds what it had."""
    buffer = torch.full((2, 3), 4, device="cuda")
    held = buffer.view(-1) if is_held else None
    graph, out = captured(lambda: buffer + 1)
    CHANGES[name](buffer)
    if held is None and name in ("set_", "data"):
        with pytest.raises(DanglingBufferError, match=r"int64\[2, 3\]"):
            graph.replay()
        return
    if held is not None:
        held[2] = 9
    graph.replay()
    assert out.tolist() == [[5, 5, 5 if held is None else 10], [5, 5, 5]]


@pytest.mark.parametrize("name", CHANGES)
def test_a_captured_tensor_may_change_in_the_capture(name: str) -> None:
    source = torch.arange(6, device="cuda").view(2, 3)

    def changes() -> tuple[torch.Tensor, torch.Tensor]:
        made = source * 2
        before = made + 1
        CHANGES[name](made)
        return before, made

    graph, (before, made) = captured(changes)
    source += 1
    graph.replay()
    assert before.tolist() == [[3, 5, 7], [9, 11, 13]]
    wanted = {"t_": [[2, 8], [4, 10], [6, 12]], "resize_": [2, 4]}
    assert made.tolist() == wanted.get(name, [7] * 5)
