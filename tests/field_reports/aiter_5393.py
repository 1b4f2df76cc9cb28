"""A workspace that is first made in a capture lies in the graph's own memory: https://github.com/ROCm/aiter/pull/5393"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in


def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum() + weight.flip(0)


class SplitK:
    """A graph for each size. The shuffled weight lies in a cached workspace, which is filled outside the graph."""

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        self._workspaces: dict[int, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        size = x.numel()
        if size not in self._graphs:
            static_x = torch.zeros_like(x)
            self.before_capture(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.forward(static_x)
            self._graphs[size] = graph, static_x, out
        graph, static_x, out = self._graphs[size]
        static_x.copy_(x)
        self._workspaces[size].copy_(weight.flip(0))
        graph.replay()
        return out.clone()

    def workspace(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() not in self._workspaces:
            self._workspaces[x.numel()] = torch.empty_like(x)
        return self._workspaces[x.numel()]

    def before_capture(self, x: torch.Tensor) -> None:
        self.workspace(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        doubled.data_ptr()  # what a kernel that is launched by address is given
        total = doubled.sum()
        del doubled
        return total + self.workspace(x)


def reference(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    total = 2 * sum(x.tolist())
    return np.array([value + total for value in weight.tolist()[::-1]], np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        x = rows_in(step, "x")
        feeds.append({"x": Argument(x), "weight": Argument(10_000 * (number + 1) + np.arange(x.size))})
    return feeds


CLASS = "L"
TARGET = Target(
    name=__name__,
    summary="cached workspaces of a split-K kernel",
    implementation=Runner(eager, SplitK),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=512),),
    build=build,
)


class LazyInCapture(SplitK):
    """Makes the workspace when it is first needed: in a capture, from a block that a temporary has just left."""

    def before_capture(self, x: torch.Tensor) -> None:
        return None


faulty = Runner(eager, LazyInCapture)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/ROCm/aiter/pull/5393", name="faulty")(faulty)
