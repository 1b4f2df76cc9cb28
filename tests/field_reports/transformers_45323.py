"""Graphs are cached by padded sizes, and the kernel's longest length is frozen: https://github.com/huggingface/transformers/pull/45323"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target

Key = tuple[int, ...]


def attend(values: torch.Tensor, k_lens: torch.Tensor, longest: int) -> torch.Tensor:
    """What a varlen kernel does that is told the longest length as a host integer."""
    inside = torch.arange(longest, device=values.device) < k_lens.unsqueeze(1)
    return (values[:, :longest] * inside).sum(1)


def eager(values: torch.Tensor, k_lens: torch.Tensor, k_lens_cpu: torch.Tensor) -> torch.Tensor:
    return attend(values, k_lens, int(k_lens_cpu.max()) if k_lens_cpu.numel() else 0)


class Graphs:
    """Captures once for each key, and replays after that."""

    def __init__(self, key_of: Callable[[torch.Tensor, int], Key]) -> None:
        self._key_of = key_of
        self._graphs: dict[Key, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, values: torch.Tensor, k_lens: torch.Tensor, k_lens_cpu: torch.Tensor) -> torch.Tensor:
        longest = int(k_lens_cpu.max()) if k_lens_cpu.numel() else 0
        key = self._key_of(values, longest)
        if key not in self._graphs:
            static_values, static_lens = values.clone(), k_lens.clone()
            attend(static_values, static_lens, key[-1])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = attend(static_values, static_lens, key[-1])
            self._graphs[key] = graph, static_values, static_lens, out
        graph, static_values, static_lens, out = self._graphs[key]
        static_values.copy_(values)
        static_lens.copy_(k_lens)
        graph.replay()
        return out.clone()


def mended() -> Graphs:
    """The longest length, rounded up, is part of the key, and what is captured."""
    return Graphs(lambda values, longest: (*values.shape, min(values.shape[1], -(-longest // 16) * 16)))


def reference(values: np.ndarray, k_lens: np.ndarray, k_lens_cpu: np.ndarray) -> np.ndarray:
    return np.array([row[:length].sum() for row, length in zip(values, k_lens, strict=True)], values.dtype)


def build(case: Case) -> Sequence[Feed]:
    width = case.values["width"]
    assert isinstance(width, int)
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = np.minimum(np.array(step["lens"], np.int64), width)
        values = np.arange(1, lens.size * width + 1, dtype=np.int64).reshape(lens.size, width) + number
        feeds.append(
            {"values": Argument(values), "k_lens": Argument(lens), "k_lens_cpu": Argument(lens, space=Space.HOST)}
        )
    return feeds


TARGET = Target(
    name=__name__,
    summary="continuous batching: a graph for each padded size",
    implementation=Runner(eager, mended),
    reference=reference,
    fixed=(IntAxis("width", simplest=1, most=256, common=(1, 16, 64)),),
    stepped=(RowsAxis("lens", most=256),),
    build=build,
)


class FrozenLongest(Graphs):
    def __call__(self, values: torch.Tensor, k_lens: torch.Tensor, k_lens_cpu: torch.Tensor) -> torch.Tensor:
        longest = int(k_lens_cpu.max()) if k_lens_cpu.numel() else 0
        key = tuple(values.shape)
        if key not in self._graphs:
            static_values, static_lens = values.clone(), k_lens.clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = attend(static_values, static_lens, longest)
            self._graphs[key] = graph, static_values, static_lens, out
        graph, static_values, static_lens, out = self._graphs[key]
        static_values.copy_(values)
        static_lens.copy_(k_lens)
        graph.replay()
        return out.clone()


def _frozen() -> Graphs:
    """Keys graphs by the padded sizes alone, so that two batches with other longest lengths share one."""
    return FrozenLongest(lambda values, longest: tuple(values.shape))


faulty = Runner(eager, _frozen)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "https://github.com/huggingface/transformers/pull/45323", name="faulty")(faulty)
