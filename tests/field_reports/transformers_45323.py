"""Graphs are cached by padded sizes; the longest length is frozen: https://github.com/huggingface/transformers/pull/45323"""

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


def attend(values: torch.Tensor, longest: int) -> torch.Tensor:
    """What a varlen kernel does that is told the longest length as a host integer."""
    return values[:, :longest].sum(1)


def longest_of(k_lens_cpu: torch.Tensor) -> int:
    return int(k_lens_cpu.max()) if k_lens_cpu.numel() else 0


def eager(values: torch.Tensor, k_lens_cpu: torch.Tensor) -> torch.Tensor:
    return attend(values, longest_of(k_lens_cpu))


class Graphs:
    """Captures once for each key, and replays after that."""

    def __init__(self, key_of: Callable[[torch.Tensor, int], Key]) -> None:
        self._key_of = key_of
        self._graphs: dict[Key, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, values: torch.Tensor, k_lens_cpu: torch.Tensor) -> torch.Tensor:
        longest = longest_of(k_lens_cpu)
        key = self._key_of(values, longest)
        if key not in self._graphs:
            static = values.clone()
            attend(static, longest)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = attend(static, longest)
            self._graphs[key] = graph, static, out
        graph, static, out = self._graphs[key]
        static.copy_(values)
        graph.replay()
        return out.clone()


def mended() -> Graphs:
    """The longest length is part of the key."""
    return Graphs(lambda values, longest: (*values.shape, longest))


def _by_padded_sizes() -> Graphs:
    """Keys graphs by the padded sizes alone, so that two batches with other longest lengths share one."""
    return Graphs(lambda values, longest: tuple(values.shape))


def reference(values: np.ndarray, k_lens_cpu: np.ndarray) -> np.ndarray:
    longest = max(k_lens_cpu.tolist(), default=0)
    return np.array([sum(row[:longest].tolist()) for row in values], values.dtype)


def build(case: Case) -> Sequence[Feed]:
    width = case.values["width"]
    assert isinstance(width, int)
    feeds: list[Feed] = []
    for step in case.steps:
        lens = np.minimum(np.array(step["lens"], np.int64), width)
        values = np.arange(1, lens.size * width + 1, dtype=np.int64).reshape(lens.size, width)
        feeds.append({"values": Argument(values), "k_lens_cpu": Argument(lens, space=Space.HOST)})
    return feeds


CLASS = "F"
TARGET = Target(
    name=__name__,
    summary="continuous batching: a graph for each padded size",
    implementation=Runner(eager, mended),
    reference=reference,
    fixed=(IntAxis("width", simplest=1, most=256, common=(1, 16, 64)),),
    stepped=(RowsAxis("lens", most=256),),
    build=build,
)
faulty = Runner(eager, _by_padded_sizes)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "https://github.com/huggingface/transformers/pull/45323", name="faulty")(
    faulty
)
