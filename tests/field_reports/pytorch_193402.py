"""Graphs of one stream share a workspace, and it goes with the first graph that dies: https://github.com/pytorch/pytorch/issues/193402"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import bucket_of, integer_in, rows_in

KEPT = 2
WORKSPACE = 16


def product(x: torch.Tensor, weight: torch.Tensor, workspace: torch.Tensor) -> torch.Tensor:
    """What a library does that was lent a workspace: it keeps an intermediate in it."""
    workspace[: weight.numel()].copy_(weight)
    return x * workspace[0] + workspace[1]


def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return product(x, weight, x.new_zeros(WORKSPACE))


class LruRunner:
    """Keeps the graphs of the buckets that were asked for last, and evicts one at a time; each owns its workspace."""

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._workspaces: dict[int, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = x.numel()
        bucket = bucket_of(rows, 2)
        if bucket not in self._graphs:
            static_x, static_weight = x.new_zeros(bucket), torch.zeros_like(weight)
            product(static_x, static_weight, self.workspace(bucket, x))  # a warm-up
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = product(static_x, static_weight, self.workspace(bucket, x))
            self._graphs[bucket] = graph, static_x, static_weight, out
            if len(self._graphs) > KEPT:
                self.evict(next(iter(self._graphs)))
        graph, static_x, static_weight, out = self._graphs[bucket] = self._graphs.pop(bucket)
        static_x[:rows].copy_(x)
        static_weight.copy_(weight)
        graph.replay()
        return out[:rows].clone()

    def owner(self, bucket: int) -> int:
        """Whose a workspace is."""
        return bucket

    def workspace(self, bucket: int, x: torch.Tensor) -> torch.Tensor:
        owner = self.owner(bucket)
        if owner not in self._workspaces:
            self._workspaces[owner] = torch.zeros(WORKSPACE, dtype=x.dtype, device=x.device)
        return self._workspaces[owner]

    def evict(self, bucket: int) -> None:
        """A graph dies, and with it the workspace of its owner."""
        self._graphs.pop(bucket)[0].reset()
        del self._workspaces[self.owner(bucket)]


def reference(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.array([int(value) * int(weight[0]) + int(weight[1]) for value in x], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [
        {
            "x": Argument(rows_in(step, "x")[: integer_in(step, "live")]),
            "weight": Argument(np.array([number + 2, number + 5])),
        }
        for number, step in enumerate(case.steps)
    ]


CLASS = "L"
TARGET = Target(
    name=__name__,
    summary="library workspaces, and a cache of graphs that evicts",
    implementation=Runner(eager, LruRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=512), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class OfTheStream(LruRunner):
    """One workspace for all graphs that were captured on a stream, cleared when any of them dies."""

    def owner(self, bucket: int) -> int:
        return 0

    def evict(self, bucket: int) -> None:
        self._graphs.pop(bucket)[0].reset()
        self._workspaces.clear()


faulty = Runner(eager, OfTheStream)
TARGET.variant(Verdict.DANGLING_BUFFER, None, "https://github.com/pytorch/pytorch/issues/193402", name="faulty")(faulty)
