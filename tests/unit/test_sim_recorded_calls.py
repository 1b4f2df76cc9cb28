"""Calls that a capture records whole: fewer nodes, and nothing else that anyone can see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from capfuzz.devices import open_device
from capfuzz.devices.errors import DanglingBufferError
from capfuzz.devices.layout import Argument
from capfuzz.devices.sim import recorded_calls
from capfuzz.devices.sim.device import SimCapturedGraph, SimDevice
from capfuzz.targets.fold_indptr import fold_indptr

Body = Callable[[torch.Tensor], Any]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimDevice]:
    monkeypatch.setattr(recorded_calls, "_known", {})
    with open_device("sim") as device:
        assert isinstance(device, SimDevice)
        yield device


def captured(device: SimDevice, body: Callable[[], Any], learnt: bool = True) -> SimCapturedGraph:
    if learnt:
        device.capture(body, 0).close()
    return device.capture(body, 0)


def nodes(graph: SimCapturedGraph) -> list[str]:
    return [node.op for node in graph._graph.nodes]


def test_a_call_of_several_ops_is_one_node_once_it_is_known(device: SimDevice) -> None:
    buffer = device.buffer(Argument(np.arange(0, 33, 4, dtype=np.int32)))

    def body() -> torch.Tensor:
        return fold_indptr(buffer.tensor, 3)

    first, second = captured(device, body, learnt=False), captured(device, body)
    assert nodes(first) == ["sub.Tensor", "clone", "cumsum", "constant_pad_nd", "_to_copy"]
    assert nodes(second) == nodes(first)
    buffer.write(np.arange(0, 18, 2, dtype=np.int32))
    for graph in (first, second):
        graph.replay(0)
        assert np.array_equal(device.read(graph.result), fold_indptr(torch.arange(0, 18, 2, dtype=torch.int32), 3).numpy())


def _summed_then_reshaped(x: torch.Tensor) -> torch.Tensor:
    view = x[:]
    total = view.sum(0)
    view.unsqueeze_(0)
    return total


@pytest.mark.parametrize(
    ("body", "recorded"),
    [
        (lambda x: torch.diff(x, n=2), ["sub.Tensor"]),
        (lambda x: x[2:].view(-1, 2), []),
        (lambda x: x.max(0), ["max.dim"]),
        (lambda x: x.reshape(2, -1).T.reshape(-1), ["clone"]),
        (lambda x: x.add_(1), ["add_.Tensor"]),
        (lambda x: x.unsqueeze_(0).squeeze_(0) + 1, ["add.Tensor"]),
        (lambda x: x.view(2, -1).T + 1, ["add.Tensor"]),
        (_summed_then_reshaped, ["sum.dim_IntList"]),
        (lambda x: torch.zeros_like(x), ["zeros_like"]),
        (lambda x: torch.rand_like(x.float()), ["_to_copy", "rng_mark", "rand_like"]),
        (lambda x: (x.sum(), x.shape, x.dtype), ["sum"]),
    ],
    ids=["two", "view", "pair", "reshape", "in place", "view in place", "columns", "reshaped later", "like", "random", "facts"],
)
def test_what_is_recorded_replays_as_its_ops_do(device: SimDevice, body: Body, recorded: list[str]) -> None:
    buffer = device.buffer(Argument(np.arange(6)))
    seen = []
    for learnt in (False, True):
        buffer.write(np.arange(6))
        before = buffer.snapshot()
        graph = captured(device, lambda: body(buffer.tensor), learnt)
        assert buffer.snapshot().tolist() == before.tolist()
        buffer.write(np.array([5, 3, 8, 1, 0, 2]))
        graph.replay(0)
        results = graph.result if isinstance(graph.result, tuple) else (graph.result,)
        seen.append([value.tolist() if isinstance(value, torch.Tensor) else value for value in results])
    assert seen[0] == seen[1]
    assert nodes(graph) == recorded


def test_a_call_that_views_now_and_copies_then(device: SimDevice) -> None:
    """What was learnt of a shape is checked against each result."""
    buffer = device.buffer(Argument(np.arange(6)))
    for body in (lambda: buffer.tensor.reshape(-1), lambda: buffer.tensor.view(2, 3).T.reshape(-1)):
        for again in (body, lambda: buffer.tensor.view(2, 3).T.reshape(-1), lambda: buffer.tensor.reshape(-1)):
            graph = device.capture(again, 0)
            buffer.write(np.arange(10, 16))
            graph.replay(0)
            assert device.read(graph.result).tolist() == again().tolist()


def test_freed_memory_is_refused_at_the_same_op_and_line(device: SimDevice) -> None:
    told = []
    for learnt in (False, True):
        held = [device.buffer(Argument(np.arange(6)))]
        graph = captured(device, lambda held=held: torch.diff(held[0].tensor), learnt)
        held.clear()
        with pytest.raises(DanglingBufferError) as caught:
            graph.replay(0)
        told.append((caught.value.op, caught.value.location))
    assert told[0] == told[1]
    assert told[0][0] == "sub.Tensor"


def test_what_lends_its_shape_alone_may_go(device: SimDevice) -> None:
    values = device.buffer(Argument(np.arange(6)))
    for learnt in (False, True):
        like = [device.buffer(Argument(np.arange(6)))]
        graph = captured(device, lambda like=like: values.tensor.view(2, 3).T.reshape_as(like[0].tensor), learnt)
        like.clear()
        graph.replay(0)
        assert device.read(graph.result).tolist() == [0, 3, 1, 4, 2, 5]


def test_an_assert_of_the_device_waits_for_the_replay(device: SimDevice) -> None:
    values, index = device.buffer(Argument(np.arange(6))), device.buffer(Argument(np.array([1, 2])))

    def body() -> torch.Tensor:
        return values.tensor[index.tensor]

    device.capture(body, 0).close()
    index.write(np.array([1, 9]))
    graph = device.capture(body, 0)
    with pytest.raises(RuntimeError, match="device-side assert"):
        graph.replay(0)


def test_a_refusal_of_the_host_is_what_it_is(device: SimDevice) -> None:
    buffer = device.buffer(Argument(np.arange(6)))
    device.capture(lambda: buffer.tensor.view(2, 3), 0).close()
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        device.capture(lambda: buffer.tensor.view(4, 3), 0)
