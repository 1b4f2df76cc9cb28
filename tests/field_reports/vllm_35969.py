"""A padded request of length 0 has the last page number -1: https://github.com/vllm-project/vllm/pull/35969"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, integer_in, integer_of, rows_in

PAGE = 4


def append(kv: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Each row's newest token goes into its last page. The table is addressed as a kernel does it: row * stride + page number.

    Page 0 is the null page; gives the others.
    """
    rows, width = table.shape
    last = (seq_lens + PAGE - 1) // PAGE - 1
    pages = table.reshape(-1)[torch.arange(rows, device=table.device) * width + last]
    kv[pages, (seq_lens - 1) % PAGE] = new
    return kv[1:].clone()


def eager(kv: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return append(kv.clone(), table, seq_lens, new)


class ModelRunner:
    """Padded requests have a table of null pages, and a length that the kernel can take."""

    padded_length = 1

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, kv: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        rows, width = table.shape
        bucket = bucket_of(rows)
        key = bucket, width, kv.shape[0]
        if key not in self._static:
            lens = seq_lens.new_ones(bucket)
            self._static[key] = torch.zeros_like(kv), table.new_zeros(bucket, width), lens, new.new_zeros(bucket)
        static_kv, static_table, static_lens, static_new = self._static[key]
        self._graphs.capture(key, lambda: append(static_kv, static_table, static_lens, static_new))
        static_kv.copy_(kv)
        static_table[:rows].copy_(table)
        static_table[rows:].zero_()
        static_lens[:rows].copy_(seq_lens)
        static_lens[rows:].fill_(self.padded_length)
        static_new[:rows].copy_(new)
        static_new[rows:].zero_()
        out: torch.Tensor = self._graphs.replay(key)
        return out.clone()


def reference(kv: np.ndarray, table: np.ndarray, seq_lens: np.ndarray, new: np.ndarray) -> np.ndarray:
    for pages, length, value in zip(table, seq_lens, new, strict=True):
        kv[pages[(length - 1) // PAGE], (length - 1) % PAGE] = value
    return kv[1:]


def build(case: Case) -> Sequence[Feed]:
    width = integer_of(case, "width")
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = np.minimum(rows_in(step, "lens"), width * PAGE)
        live = integer_in(step, "live")
        pages = lens.size * width
        kv = 1_000_000 * (number + 1) + np.arange((pages + 1) * PAGE).reshape(pages + 1, PAGE)
        feeds.append(
            {
                "kv": Argument(kv),
                "table": Argument(1 + np.arange(pages).reshape(lens.size, width)[:live]),
                "seq_lens": Argument(lens[:live]),
                "new": Argument(1000 * number + np.arange(live)),
            }
        )
    return feeds


CLASS = "P"
TARGET = Target(
    name=__name__,
    summary="lengths and page tables of padded requests, for FlashMLA",
    implementation=Runner(eager, ModelRunner),
    reference=reference,
    fixed=(IntAxis("width", simplest=1, most=16, common=(1, 2, 4)),),
    stepped=(RowsAxis("lens", least=1, most=64), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class PadsWithZero(ModelRunner):
    """Gives padded requests the length 0, as other kernels want it."""

    padded_length = 0


faulty = Runner(eager, PadsWithZero)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/vllm-project/vllm/pull/35969", name="faulty")(faulty)
