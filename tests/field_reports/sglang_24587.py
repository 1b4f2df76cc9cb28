"""The graph's index buffer is sized in pages, and filled with an entry a token: https://github.com/sgl-project/sglang/pull/24587"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in


class Backend:
    """The index buffer of each graph, found by the graph's static lengths, and filled in front of every replay."""

    def __init__(self) -> None:
        self._kv_indices = WeakTensorKeyDictionary()

    def prepare(self, mode: Mode, **inputs: Any) -> torch.Tensor:
        lens, tokens = inputs["lens"], inputs["tokens"]
        total = int(inputs["lens_cpu"].sum())
        if mode is Mode.EAGER:
            eager: torch.Tensor = tokens[:total].clone()
            return eager
        if mode is Mode.CAPTURE:
            capacity = self.capacity(lens.numel(), inputs["longest"], inputs["page"])
            self._kv_indices[lens] = torch.zeros(capacity, dtype=tokens.dtype, device=tokens.device)
        kv_indices: torch.Tensor = self._kv_indices[lens]
        if mode is Mode.REPLAY:
            kv_indices[torch.arange(total, device=tokens.device)] = tokens[:total]  # a kernel: an entry a token
        return kv_indices

    def capacity(self, rows: int, longest: int, page: int) -> int:
        return rows * longest


def attend(kv_indices: torch.Tensor, /, **inputs: Any) -> torch.Tensor:
    """The sum of each row's tokens."""
    kv: torch.Tensor = inputs["kv"]
    indptr = F.pad(inputs["lens"].cumsum(0), (1, 0))
    row = torch.searchsorted(indptr[1:], torch.arange(kv_indices.numel(), device=kv.device), right=True)
    return kv.new_zeros(indptr.numel()).index_add(0, row, kv[kv_indices])[:-1]


def reference(
    kv: np.ndarray, lens: np.ndarray, lens_cpu: np.ndarray, tokens: np.ndarray, longest: int, page: int
) -> np.ndarray:
    ends = np.cumsum(lens)
    sums = [kv[tokens[end - length : end]].sum() for end, length in zip(ends, lens, strict=True)]
    return np.array(sums, np.int64)


def build(case: Case) -> Sequence[Feed]:
    longest, page = integer_of(case, "longest"), integer_of(case, "page")
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = np.minimum(rows_in(step, "lens"), longest)
        slots = np.arange(lens.size * longest)
        feeds.append(
            {
                "kv": Argument(np.arange(slots.size + 1) + 1000 * (number + 1)),
                "lens": Argument(lens),
                "lens_cpu": Argument(lens.copy(), space=Space.HOST),
                "tokens": Argument(np.roll(slots, number)),
                "longest": longest,
                "page": page,
            }
        )
    return feeds


CLASS = "E"
TARGET = Target(
    name=__name__,
    summary="the index buffer of a graph, with pages of more than one token",
    implementation=TwoPart(Backend().prepare, attend),
    reference=reference,
    fixed=(
        IntAxis("longest", simplest=1, most=64, common=(4, 16, 32)),
        IntAxis("page", simplest=1, most=64, common=(1, 4, 16)),
    ),
    stepped=(RowsAxis("lens", most=64),),
    build=build,
)


class SizedInPages(Backend):
    """Makes room for an entry a page."""

    def capacity(self, rows: int, longest: int, page: int) -> int:
        return rows * -(-longest // page)


faulty = TwoPart(SizedInPages().prepare, attend)
TARGET.variant(Verdict.REPLAY_ERROR, "AcceleratorError", "https://github.com/sgl-project/sglang/pull/24587", name="faulty")(
    faulty
)
