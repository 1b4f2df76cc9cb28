"""The graph's page table has no room for draft tokens: https://github.com/sgl-project/sglang/pull/19016"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in

LONGEST = 16


class Backend:
    """The page table of each graph, found by the graph's static lengths, and filled in front of every replay."""

    def __init__(self) -> None:
        self._tables = WeakTensorKeyDictionary()

    def prepare(self, mode: Mode, **inputs: Any) -> torch.Tensor:
        lens, requests = inputs["lens"], inputs["requests"]
        columns = int(inputs["lens_cpu"].max()) + inputs["drafts"] if lens.numel() else 0
        if mode is Mode.EAGER:
            eager: torch.Tensor = requests.clone()
            return eager
        if mode is Mode.CAPTURE:
            self._tables[lens] = requests.new_zeros(lens.numel(), self.width(inputs["drafts"]))
        table: torch.Tensor = self._tables[lens]
        if mode is Mode.REPLAY:
            table[:, :columns].copy_(requests[:, :columns])
        return table

    def width(self, drafts: int) -> int:
        return LONGEST + drafts


def verify(table: torch.Tensor, /, **inputs: Any) -> torch.Tensor:
    """The sum of the slots of each request and of its drafts."""
    ends: torch.Tensor = inputs["lens"] + inputs["drafts"]
    inside = torch.arange(table.shape[1], device=table.device) < ends.unsqueeze(1)
    return torch.where(inside, table, 0).sum(1)


def reference(requests: np.ndarray, lens: np.ndarray, lens_cpu: np.ndarray, drafts: int) -> np.ndarray:
    return np.array([row[: length + drafts].sum() for row, length in zip(requests, lens, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    drafts = integer_of(case, "drafts")
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = rows_in(step, "lens")
        width = LONGEST + drafts
        requests = np.arange(lens.size * width).reshape(lens.size, width) + 1000 * number
        feeds.append(
            {
                "requests": Argument(requests),
                "lens": Argument(lens),
                "lens_cpu": Argument(lens.copy(), space=Space.HOST),
                "drafts": drafts,
            }
        )
    return feeds


CLASS = "E"
TARGET = Target(
    name=__name__,
    summary="the page table of a verification, as long as requests may be",
    implementation=TwoPart(Backend().prepare, verify),
    reference=reference,
    fixed=(IntAxis("drafts", simplest=0, most=8, common=(0, 1, 2, 4)),),
    stepped=(RowsAxis("lens", most=LONGEST),),
    build=build,
)


class WithoutHeadroom(Backend):
    """Makes the table as wide as the longest request, without its drafts."""

    def width(self, drafts: int) -> int:
        return LONGEST


faulty = TwoPart(WithoutHeadroom().prepare, verify)
TARGET.variant(Verdict.REPLAY_ERROR, "RuntimeError", "https://github.com/sgl-project/sglang/pull/19016", name="faulty")(faulty)
