"""Padded rows go through the experts and into the all-reduce: https://github.com/sgl-project/sglang/pull/30895"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, integer_in, rows_in

BIAS = 3
Answer = tuple[torch.Tensor, torch.Tensor]


def experts(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The shared expert: a row of zeros comes out as its bias."""
    return x * weight + BIAS


def reduce(out: torch.Tensor) -> Answer:
    """What each row gets, and what a collective over rows does."""
    return out, out.sum()


def mask_padding(out: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(out.numel(), device=out.device) < live, out, 0)


def eager(x: torch.Tensor, weight: torch.Tensor) -> Answer:
    return reduce(experts(x, weight))


class MoeRunner:
    """Runs the graph of a bucket, which knows how many rows are real."""

    mask = staticmethod(mask_padding)

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> Answer:
        rows = x.numel()
        bucket = bucket_of(rows)
        if bucket not in self._static:
            self._static[bucket] = x.new_zeros(bucket), torch.zeros_like(weight), x.new_zeros(1)
        static_x, static_weight, live = self._static[bucket]
        self._graphs.capture(bucket, lambda: reduce(self.mask(experts(static_x, static_weight), live)))
        static_x[:rows].copy_(x)
        static_x[rows:].zero_()
        static_weight.copy_(weight)
        live.fill_(rows)
        out, total = self._graphs.replay(bucket)
        return out[:rows].clone(), total.clone()


def reference(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = [int(value) * int(weight[0]) + BIAS for value in x]
    return np.array(out, np.int64), np.array(sum(out), np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [
        {
            "x": Argument(rows_in(step, "x")[: integer_in(step, "live")] + 1000 * (number + 1)),
            "weight": Argument(np.array([number + 2])),
        }
        for number, step in enumerate(case.steps)
    ]


CLASS = "P"
TARGET = Target(
    name=__name__,
    summary="a mixture of experts with a reduction behind it, in a padded graph",
    implementation=Runner(eager, MoeRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=512), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class PaddingCounts(MoeRunner):
    """Does not tell the experts how many rows are real: what they make of padded rows goes into the sum."""

    @staticmethod
    def mask(out: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        return out


faulty = Runner(eager, PaddingCounts)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/sgl-project/sglang/pull/30895", name="faulty")(faulty)
