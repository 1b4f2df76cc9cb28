"""A bounded cache is the only owner of a table that a graph reads: https://github.com/ROCm/aiter/pull/4587"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, rows_in

WIDTH = 16


def splits_of(batch: int, total_kv: int) -> int:
    """Into how many parts each row is cut; a choice that changes no result."""
    return next(splits for splits in (4, 2, 1) if total_kv >= splits * batch or splits == 1)


def table_of(batch: int, splits: int, device: torch.device) -> torch.Tensor:
    """Where the parts of each row begin."""
    return torch.arange(0, (batch + 1) * splits, splits, device=device)


def attend(x: torch.Tensor, indptr: torch.Tensor, splits: int) -> torch.Tensor:
    """Sums the parts of each row, and then the parts that its offsets say are its own."""
    parts = x.view(-1, WIDTH // splits).sum(1)
    ends = torch.cat((parts.new_zeros(1), parts.cumsum(0)))
    return ends[indptr[1:]] - ends[indptr[:-1]]


def eager(x: torch.Tensor, lens_cpu: torch.Tensor) -> torch.Tensor:
    batch = x.shape[0]
    splits = splits_of(batch, int(lens_cpu.sum()))
    return attend(x, table_of(batch, splits, x.device), splits)


class Decoder:
    """One graph for each batch size. What a step's total asks for is looked up in front of every replay, in a bounded cache."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[int, torch.Tensor] = {}
        self._splits = functools.lru_cache(maxsize=2)(splits_of)

    def __call__(self, x: torch.Tensor, lens_cpu: torch.Tensor) -> torch.Tensor:
        batch, total_kv = x.shape[0], int(lens_cpu.sum())
        self.look_up(batch, total_kv, x.device)
        if batch not in self._static:
            self._static[batch] = torch.zeros_like(x)
        static_x = self._static[batch]
        self._graphs.capture(batch, lambda: attend(static_x, *self.look_up(batch, total_kv, x.device)))
        static_x.copy_(x)
        out: torch.Tensor = self._graphs.replay(batch)
        return out.clone()

    def look_up(self, batch: int, total_kv: int, device: torch.device) -> tuple[torch.Tensor, int]:
        splits = self._splits(batch, total_kv)
        return table_of(batch, splits, device), splits


def reference(x: np.ndarray, lens_cpu: np.ndarray) -> np.ndarray:
    return np.array([sum(row.tolist()) for row in x], np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = rows_in(step, "lens")
        x = np.arange(lens.size * WIDTH).reshape(lens.size, WIDTH) + 1000 * number
        feeds.append({"x": Argument(x), "lens_cpu": Argument(lens, space=Space.HOST)})
    return feeds


CLASS = "L"
TARGET = Target(
    name=__name__,
    summary="the split offsets of MLA decode",
    implementation=Runner(eager, Decoder),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=512),),
    build=build,
)


def table_and_splits(batch: int, total_kv: int, device: torch.device) -> tuple[torch.Tensor, int]:
    splits = splits_of(batch, total_kv)
    return table_of(batch, splits, device), splits


class CachesTables(Decoder):
    """Caches the tables themselves, by a key that changes at every step: that of the captured step goes first."""

    def __init__(self) -> None:
        super().__init__()
        self._tables = functools.lru_cache(maxsize=2)(table_and_splits)

    def look_up(self, batch: int, total_kv: int, device: torch.device) -> tuple[torch.Tensor, int]:
        return self._tables(batch, total_kv, device)


faulty = Runner(eager, CachesTables)
TARGET.variant(Verdict.DANGLING_BUFFER, None, "https://github.com/ROCm/aiter/pull/4587", name="faulty")(faulty)
