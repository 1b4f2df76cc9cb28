"""`index_put_` with a boolean index asks the device how many there are: https://github.com/pytorch/pytorch/pull/170262"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in


def mended(buffer: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return buffer.copy_(torch.where(mask, values, buffer))


def reference(buffer: np.ndarray, mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    buffer[mask] = values[mask]
    return buffer


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        rows = rows_in(step, "rows")
        buffer = np.full(len(rows), -1 - number)
        feeds.append({"buffer": Argument(buffer), "mask": Argument(rows % 2 == 1), "values": Argument(rows)})
    return feeds


CLASS = "H2"
TARGET = Target(
    name=__name__,
    summary="chosen elements of a buffer are overwritten",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("rows", most=4096),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/pytorch/pytorch/pull/170262")
def faulty(buffer: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Writes under a boolean index, which runs nonzero and waits for it."""
    return buffer.index_put_((mask,), values[mask])
