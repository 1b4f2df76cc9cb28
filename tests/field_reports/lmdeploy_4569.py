"""Padded requests keep the blocks of the step before, and write into them: https://github.com/InternLM/lmdeploy/pull/4569"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, draining, rows_in


def fill_cache(kv: torch.Tensor, block_offsets: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Each row writes its block; what is left in the blocks that requests may own, which block 0 is not."""
    kv[block_offsets] = new
    return kv[1:].clone()


def eager(kv: torch.Tensor, block_offsets: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return fill_cache(kv.clone(), block_offsets, new)


class GraphRunner:
    """Decodes in the graph of a bucket. All of its rows write, the padded ones into block 0."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, kv: torch.Tensor, block_offsets: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        rows = new.numel()
        key = bucket, blocks = bucket_of(rows), kv.numel()
        if key not in self._static:
            self._static[key] = kv.new_zeros(blocks), block_offsets.new_zeros(bucket), new.new_zeros(bucket)
        static_kv, static_offsets, static_new = self._static[key]
        self._graphs.capture(key, lambda: fill_cache(static_kv, static_offsets, static_new))
        static_kv.copy_(kv)
        self.clear(static_offsets)
        static_offsets[:rows].copy_(block_offsets)
        static_new.zero_()
        static_new[:rows].copy_(new)
        out: torch.Tensor = self._graphs.replay(key)
        return out.clone()

    def clear(self, block_offsets: torch.Tensor) -> None:
        block_offsets.zero_()


def reference(kv: np.ndarray, block_offsets: np.ndarray, new: np.ndarray) -> np.ndarray:
    owners = {int(block): int(value) for block, value in zip(block_offsets, new, strict=True)}
    return np.array([owners.get(block, kv[block]) for block in range(1, kv.size)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, (step, live) in enumerate(zip(case.steps, draining(case, "live"), strict=True)):
        lens = rows_in(step, "lens")
        feeds.append(
            {
                "kv": Argument(1_000_000 * (number + 1) + np.arange(lens.size + 1)),
                "block_offsets": Argument(np.roll(np.arange(lens.size) + 1, number)[:live].copy()),
                "new": Argument(lens[:live] + 1000 * number + 1),
            }
        )
    return feeds


CLASS = "S"
TARGET = Target(
    name=__name__,
    summary="the block table of a decode graph",
    implementation=Runner(eager, GraphRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=512), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class Leftover(GraphRunner):
    """Fills in the blocks of the requests that there are, and does not clear the table first."""

    def clear(self, block_offsets: torch.Tensor) -> None:
        return None


faulty = Runner(eager, Leftover)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/InternLM/lmdeploy/pull/4569", name="faulty")(faulty)
