"""The host writes a pinned buffer again before the copy of it has run: https://github.com/vllm-project/vllm-ascend/pull/12071"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, rows_in

CANNOT_SHOW = (
    "The host must overtake the device, and nothing is asynchronous on the simulated device: a copy has run when it returns. "
    "The check reads every answer before the next call, so a GPU shows the race neither."
)


def eager(offsets: torch.Tensor) -> torch.Tensor:
    return offsets.diff().to("cuda")


class Worker:
    """A graph for each batch size; its offsets are copied from a snapshot that nobody writes again."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, offsets: torch.Tensor) -> torch.Tensor:
        size = offsets.numel()
        if size not in self._static:
            pinned = torch.zeros(size, dtype=offsets.dtype, pin_memory=True)
            self._static[size] = pinned, torch.zeros(size, dtype=offsets.dtype, device="cuda")
        pinned, static = self._static[size]
        self._graphs.capture(size, static.diff)
        pinned.copy_(offsets)
        static.copy_(self.source(pinned), non_blocking=True)
        out: torch.Tensor = self._graphs.replay(size)
        return out.clone()

    def source(self, pinned: torch.Tensor) -> torch.Tensor:
        return pinned.clone().pin_memory()


def reference(offsets: np.ndarray) -> np.ndarray:
    return np.array([int(offsets[row + 1] - offsets[row]) for row in range(offsets.size - 1)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [
        {"offsets": Argument(np.concatenate([[0], np.cumsum(rows_in(step, "lens"))]), space=Space.HOST)} for step in case.steps
    ]


CLASS = "O"
TARGET = Target(
    name=__name__,
    summary="query offsets that are copied while the host goes on",
    implementation=Runner(eager, Worker),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=512),),
    build=build,
)


class Overtaking(Worker):
    """Copies from the one pinned buffer, which the next step fills anew while the copy may still be queued."""

    def source(self, pinned: torch.Tensor) -> torch.Tensor:
        return pinned


faulty = Runner(eager, Overtaking)
TARGET.variant(Verdict.NONDETERMINISTIC, None, "https://github.com/vllm-project/vllm-ascend/pull/12071", name="faulty")(faulty)
