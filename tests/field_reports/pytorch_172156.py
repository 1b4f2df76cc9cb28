"""A pageable host copy is captured, whose source dies at once: https://github.com/pytorch/pytorch/pull/172156"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in


def mended(dst: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The source is pinned, and its owner, who refills it before each replay, outlives the graph."""
    dst.copy_(values, non_blocking=True)
    return dst + 1


def reference(dst: np.ndarray, values: np.ndarray) -> np.ndarray:
    return values + 1


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for step in case.steps:
        values = rows_in(step, "values")
        feeds.append({"dst": Argument(np.zeros_like(values)), "values": Argument(values, space=Space.PINNED)})
    return feeds


CLASS = "H1"
TARGET = Target(
    name=__name__,
    summary="values of the host are copied into a device buffer without waiting",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("values", most=4096),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/pytorch/pytorch/pull/172156")
def faulty(dst: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Copies from a pageable temporary, whose address older versions recorded after its death."""
    dst.copy_(torch.tensor(values.tolist(), dtype=dst.dtype), non_blocking=True)
    return dst + 1
