"""An index that lies outside: the device asserts, and in a capture, where nothing runs, nothing asserts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import capfuzz

USES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i),
    "index_select": lambda x, i: x.index_select(0, i),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x.float()[:, None]),
    "scatter_": lambda x, i: x.scatter_(0, i, i),
    "index_put_": lambda x, i: x.index_put_((i,), i),
    "index_fill_": lambda x, i: x.index_fill_(0, i, 1),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_value_outside_is_an_assert_of_the_device(use: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    with capfuzz.sim():
        x = torch.arange(4, device="cuda")
        use(x, torch.tensor([1, 2], device="cuda"))
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            use(x, torch.tensor([1, 9], device="cuda"))


def test_what_shapes_alone_forbid_is_refused_by_the_host() -> None:
    with capfuzz.sim():
        x = torch.arange(4, device="cuda")
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            x[9]
        with pytest.raises(IndexError, match="Dimension out of range"):
            x.index_select(3, x)


def test_on_the_host_it_is_an_index_error() -> None:
    with capfuzz.sim(), pytest.raises(IndexError):
        torch.arange(4)[torch.tensor([9])]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_capture_asserts_at_replay_only(use: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    with capfuzz.sim():
        x, i = torch.arange(4, device="cuda"), torch.tensor([1, 9], device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            use(x, i)
        assert x.tolist() == [0, 1, 2, 3]
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            graph.replay()
        i.copy_(torch.tensor([1, 2], device="cuda"))
        graph.replay()
