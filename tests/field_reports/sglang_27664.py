"""Metadata is upgraded inside a captured region, into memory of that graph: https://github.com/sgl-project/sglang/pull/27664"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, draining, rows_in

MOST_ROWS = 8192
LONGEST = 512


def upgrade(lens: torch.Tensor) -> torch.Tensor:
    """From what the scheduler knows to what the layers read: how many pages each request has."""
    return torch.div(lens + 15, 16, rounding_mode="floor")


def eager(x: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    return x * upgrade(lens)


class AttentionBackend:
    """Graphs of all sizes read one metadata object. Its buffers are made before any capture, and each graph fills them."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static_x: dict[int, torch.Tensor] = {}
        self._raw: torch.Tensor | None = None
        self._pages: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        rows = x.numel()
        if self._raw is None:
            self._raw = lens.new_zeros(MOST_ROWS)
        if rows not in self._static_x:
            self._static_x[rows] = torch.zeros_like(x)
        static_x, raw = self._static_x[rows], self._raw
        self._graphs.capture(rows, lambda: static_x * self.pages(raw)[:rows])
        static_x.copy_(x)
        raw[:rows].copy_(lens)
        return self._graphs.replay(rows).clone()  # type: ignore[no-any-return]

    def pages(self, raw: torch.Tensor) -> torch.Tensor:
        if self._pages is None:
            self._pages = torch.zeros_like(raw)
        return self._pages.copy_(upgrade(raw))


def reference(x: np.ndarray, lens: np.ndarray) -> np.ndarray:
    return np.array([int(value) * -(-int(length) // 16) for value, length in zip(x, lens, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    """The first batch has a request more than any later one, and the requests of each step are longer."""
    feeds: list[Feed] = []
    for number, (step, live) in enumerate(zip(case.steps, draining(case, "live"), strict=True)):
        rows = max(1, live) if number else max(2, live + 1)
        lens = LONGEST * number + np.resize(rows_in(step, "lens"), rows)
        feeds.append({"x": Argument(1 + number + np.arange(rows)), "lens": Argument(lens)})
    return feeds


CLASS = "L"
TARGET = Target(
    name=__name__,
    summary="attention metadata that is completed in the first layer",
    implementation=Runner(eager, AttentionBackend),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=LONGEST), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class UpgradesInCapture(AttentionBackend):
    """The first graph that is captured upgrades the metadata in its own memory; the others find them upgraded."""

    def pages(self, raw: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            return upgrade(raw)
        if self._pages is None:
            self._pages = upgrade(raw)
        return self._pages


faulty = Runner(eager, UpgradesInCapture)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/sgl-project/sglang/pull/27664", name="faulty")(faulty)
