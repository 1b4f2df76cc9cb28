"""A compiled function is called for the first time in a capture, and sets itself up there: https://github.com/pytorch/pytorch/issues/185074"""

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


def mended(x: torch.Tensor) -> torch.Tensor:
    """Nothing is left for the first call: the order of rows is made on the device."""
    return x.flip(0) + torch.arange(x.numel(), device=x.device)


def reference(x: np.ndarray) -> np.ndarray:
    return np.array([value + number for number, value in enumerate(x[::-1])], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [{"x": Argument(rows_in(step, "x"))} for step in case.steps]


CLASS = "H3"
TARGET = Target(
    name=__name__,
    summary="rows are rearranged by a function that is specialised to their number",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=4096),),
    build=build,
)
COMPILED: dict[int, torch.Tensor] = {}


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/pytorch/pytorch/issues/185074")
def faulty(x: torch.Tensor) -> torch.Tensor:
    """Sends a table to the device in the first call with each shape; if no warm-up was that call, capture is."""
    if x.numel() not in COMPILED:
        COMPILED[x.numel()] = torch.tensor(list(range(x.numel())), dtype=torch.int64, device=x.device)
    return x.flip(0) + COMPILED[x.numel()]
