"""The host's sum of lengths leaves out the padded rows, which the device counts: https://github.com/sgl-project/sglang/pull/1789"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, draining, rows_in

LONGEST = 8
FILL = 1  # the length of a padded row: one token, in slot 0
Answer = tuple[torch.Tensor, torch.Tensor]


def attend(kv: torch.Tensor, indptr: torch.Tensor, kv_indices: torch.Tensor) -> Answer:
    """The sum of each row's tokens, and of all rows', as a reduction behind attention makes it."""
    at = torch.arange(kv_indices.numel(), device=kv.device)
    row = torch.searchsorted(indptr[1:].contiguous(), at, right=True)
    sums = kv.new_zeros(indptr.numel()).index_add(0, row, kv[kv_indices])[:-1]
    return sums, sums.sum()


def eager(kv: torch.Tensor, lens: torch.Tensor, lens_cpu: torch.Tensor, tokens: torch.Tensor) -> Answer:
    return attend(kv, F.pad(lens.cumsum(0), (1, 0)), tokens)


class CudaGraphRunner:
    """Decodes in the graph of a bucket. Slot 0 of the cache is reserved for padded rows, and holds zeros."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, kv: torch.Tensor, lens: torch.Tensor, lens_cpu: torch.Tensor, tokens: torch.Tensor) -> Answer:
        rows = lens.numel()
        key = bucket, _ = bucket_of(rows), kv.numel()
        if key not in self._static:
            self._static[key] = torch.zeros_like(kv), lens.new_zeros(bucket + 1), tokens.new_zeros(bucket * LONGEST)
        static_kv, indptr, kv_indices = self._static[key]
        self._graphs.capture(key, lambda: attend(static_kv, indptr, kv_indices))
        static_kv.copy_(kv)
        indptr[1:].copy_(F.pad(lens, (0, bucket - rows), value=FILL).cumsum(0))
        wanted = F.pad(tokens, (0, FILL * (bucket - rows)))
        total = self.sum_of(lens_cpu, bucket)
        kv_indices[:total].copy_(wanted[:total])
        sums, total_sum = self._graphs.replay(key)
        return sums[:rows].clone(), total_sum.clone()

    def sum_of(self, lens_cpu: torch.Tensor, bucket: int) -> int:
        return int(lens_cpu.sum()) + FILL * (bucket - lens_cpu.numel())


def reference(kv: np.ndarray, lens: np.ndarray, lens_cpu: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum(lens)
    sums = [kv[tokens[end - length : end]].sum() for end, length in zip(ends, lens, strict=True)]
    return np.array(sums, np.int64), np.array(kv[tokens].sum(), np.int64)


def build(case: Case) -> Sequence[Feed]:
    lens = rows_in(case.steps[0], "lens")
    slots = int(lens.sum())
    feeds: list[Feed] = []
    for number, live in enumerate(draining(case, "live")):
        kv = (np.arange(slots + 1) + number * slots) * (np.arange(slots + 1) > 0)
        tokens = 1 + np.roll(np.arange(slots), number)[: lens[:live].sum()]
        feeds.append(
            {
                "kv": Argument(kv),
                "lens": Argument(lens[:live]),
                "lens_cpu": Argument(lens[:live], space=Space.HOST),
                "tokens": Argument(tokens),
            }
        )
    return feeds


CLASS = "P"
TARGET = Target(
    name=__name__,
    summary="page indices that are sized by a sum of lengths on the host",
    implementation=Runner(eager, CudaGraphRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=LONGEST), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class SumsRealRows(CudaGraphRunner):
    """Sums the lengths of the real rows alone, so that the indices of padded rows are left out."""

    def sum_of(self, lens_cpu: torch.Tensor, bucket: int) -> int:
        return int(lens_cpu.sum())


faulty = Runner(eager, SumsRealRows)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/sgl-project/sglang/pull/1789", name="faulty")(faulty)
