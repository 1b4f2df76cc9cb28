"""A dummy run leaves the offsets of padded requests as the last real step wrote them: https://github.com/vllm-project/vllm/pull/40003"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, draining, integer_in, rows_in

Answer = tuple[torch.Tensor, torch.Tensor]


def attend(query_start_loc: torch.Tensor, scale: torch.Tensor) -> Answer:
    """The query length of each request, and the work of the whole batch, which a scheduler of tiles adds up over all rows."""
    lens = query_start_loc.diff()
    return lens, (lens * lens).sum() * scale[0]


def eager(lens: torch.Tensor, scale: torch.Tensor, is_dummy: bool) -> Answer:
    offsets = torch.zeros(lens.numel() + 1, dtype=lens.dtype, device=lens.device)
    offsets[1:] = lens.cumsum(0)
    return attend(offsets, scale)


class ModelRunner:
    """Real steps and dummy runs share the offsets of a bucket, and the full graph reads all of them."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, lens: torch.Tensor, scale: torch.Tensor, is_dummy: bool) -> Answer:
        rows = lens.numel()
        bucket = bucket_of(rows)
        if bucket not in self._static:
            self._static[bucket] = lens.new_zeros(bucket + 1), torch.zeros_like(scale)
        offsets, static_scale = self._static[bucket]
        self._graphs.capture(bucket, lambda: attend(offsets, static_scale))
        static_scale.copy_(scale)
        offsets[1 : rows + 1].copy_(lens.cumsum(0))
        if self.pads(is_dummy):
            offsets[:1].zero_()
            offsets[rows + 1 :].copy_(offsets[rows : rows + 1].expand(bucket - rows))
        out, work = self._graphs.replay(bucket)
        return out[:rows].clone(), work.clone()

    def pads(self, is_dummy: bool) -> bool:
        return True


def reference(lens: np.ndarray, scale: np.ndarray, is_dummy: bool) -> tuple[np.ndarray, np.ndarray]:
    return lens, np.array(np.dot(lens, lens) * scale[0])


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, (step, live) in enumerate(zip(case.steps, draining(case, "live"), strict=True)):
        lens = rows_in(step, "lens")[:live]
        is_dummy = number > 0 and integer_in(step, "is_dummy") == 1
        feeds.append({"lens": Argument(lens), "scale": Argument(np.array([number + 1])), "is_dummy": is_dummy})
    return feeds


CLASS = "S"
TARGET = Target(
    name=__name__,
    summary="query offsets of real steps and of dummy runs in one buffer",
    implementation=Runner(eager, ModelRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=4096), StepIntAxis("live", up_to_batch=True), StepIntAxis("is_dummy", common=(1,))),
    build=build,
)


class Forgetful(ModelRunner):
    """A dummy run writes the offsets of its own requests, and nothing behind them."""

    def pads(self, is_dummy: bool) -> bool:
        return not is_dummy


faulty = Runner(eager, Forgetful)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/vllm-project/vllm/pull/40003", name="faulty")(faulty)
