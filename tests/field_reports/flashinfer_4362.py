"""The captured region filters with a boolean mask: https://github.com/flashinfer-ai/flashinfer/pull/4362"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in


def mended(pages: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The sum of the pages that are chosen; an index of -1 chooses none. Filters with a product instead of a shape."""
    return (pages[indices.clamp(min=0)] * (indices >= 0)).sum()


def reference(pages: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.array(sum(int(pages[index]) for index in indices.flat if index >= 0))


def build(case: Case) -> Sequence[Feed]:
    width = integer_of(case, "width")
    column = np.arange(width)
    pages = np.arange(1, 8 * width + 1)
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        chosen = np.minimum(rows_in(step, "chosen"), width)
        indices = np.where(column < chosen[:, None], (column + 3 * number) % len(pages), -1)
        feeds.append({"pages": Argument(pages), "indices": Argument(indices)})
    return feeds


CLASS = "H2"
TARGET = Target(
    name=__name__,
    summary="sparse attention over the pages that each request has chosen",
    implementation=mended,
    reference=reference,
    fixed=(IntAxis("width", simplest=1, most=64, common=(1, 4, 16)),),
    stepped=(RowsAxis("chosen", most=64),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/flashinfer-ai/flashinfer/pull/4362")
def faulty(pages: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Selects the legal indices with a mask, so that the shape depends on the data."""
    return pages[indices[indices >= 0]].sum()
