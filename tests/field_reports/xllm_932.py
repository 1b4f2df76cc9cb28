"""The cache kernel reads a block table as if it were contiguous, and under graphs it is a slice: https://github.com/xLLM-AI/xllm/pull/932"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, integer_of, rows_in

WIDEST = 8


def blocks_of(table: torch.Tensor) -> torch.Tensor:
    """The blocks of each row, through the table's own strides."""
    return table + 0


def eager(table: torch.Tensor) -> torch.Tensor:
    return table + 0


class DecodeRunner:
    """The graph's table is a slice of one that has a column for every block that there may be."""

    kernel = staticmethod(blocks_of)

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, table: torch.Tensor) -> torch.Tensor:
        key = rows, width = table.shape
        if key not in self._static:
            self._static[key] = table.new_full((rows, WIDEST), -1)
        static_table = self._static[key][:, :width]
        self._graphs.capture(key, lambda: self.kernel(static_table))
        static_table.copy_(table)
        out: torch.Tensor = self._graphs.replay(key)
        return out.clone()


def reference(table: np.ndarray) -> np.ndarray:
    return np.array(table)


def build(case: Case) -> Sequence[Feed]:
    width = integer_of(case, "width")
    return [
        {"table": Argument(rows_in(step, "blocks")[:, None] * WIDEST + np.arange(width) + 1000 * number)}
        for number, step in enumerate(case.steps)
    ]


CLASS = "Y"
TARGET = Target(
    name=__name__,
    summary="the block table of a decode graph that runs several rounds",
    implementation=Runner(eager, DecodeRunner),
    reference=reference,
    fixed=(IntAxis("width", simplest=1, most=WIDEST, common=(1, 2, 4, WIDEST)),),
    stepped=(RowsAxis("blocks", most=64),),
    build=build,
)


class Blind(DecodeRunner):
    """The kernel takes the elements one behind the other."""

    @staticmethod
    def kernel(table: torch.Tensor) -> torch.Tensor:
        rows, width = table.shape
        return table.as_strided((rows, width), (width, 1)) + 0


faulty = Runner(eager, Blind)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/xLLM-AI/xllm/pull/932", name="faulty")(faulty)
