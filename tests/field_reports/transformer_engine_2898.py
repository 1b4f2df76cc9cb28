"""The host asks the offsets whether there is padding to clear: https://github.com/NVIDIA/TransformerEngine/pull/2898"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in


def clear_padding(grad: torch.Tensor, cu: torch.Tensor, cu_padded: torch.Tensor) -> torch.Tensor:
    """Zeroes the tokens of `grad` that belong to no sequence: sequence i fills the first part of its padded room."""
    token = torch.arange(grad.numel(), device=grad.device)
    row = torch.searchsorted(cu_padded[1:], token, right=True)
    ends = F.pad(cu_padded[:-1] + cu.diff(), (0, 1))  # behind the last sequence all is padding
    return torch.where(token < ends[row], grad, 0)


def reference(grad: np.ndarray, cu: np.ndarray, cu_padded: np.ndarray) -> np.ndarray:
    cleared = np.zeros_like(grad)
    for start, length in zip(cu_padded[:-1], np.diff(cu), strict=True):
        cleared[start : start + length] = grad[start : start + length]
    return cleared


def build(case: Case) -> Sequence[Feed]:
    lens = [rows_in(step, "lens") for step in case.steps]
    multiple = integer_of(case, "multiple")
    padded = [-(-rows // multiple) * multiple for rows in lens]
    grad = np.arange(1, 2 + max(int(rows.sum()) for rows in padded))
    return [
        {
            "grad": Argument(grad),
            "cu": Argument(np.concatenate(([0], real.cumsum()))),
            "cu_padded": Argument(np.concatenate(([0], room.cumsum()))),
        }
        for real, room in zip(lens, padded, strict=True)
    ]


CLASS = "H2"
TARGET = Target(
    name=__name__,
    summary="gradients of packed sequences, each padded to a multiple",
    implementation=clear_padding,
    reference=reference,
    fixed=(IntAxis("multiple", simplest=1, most=64, common=(1, 4, 16)),),
    stepped=(RowsAxis("lens", most=256, total=1 << 16),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/NVIDIA/TransformerEngine/pull/2898")
def faulty(grad: torch.Tensor, cu: torch.Tensor, cu_padded: torch.Tensor) -> torch.Tensor:
    """Waits to learn whether the two offsets are equal, and where the last sequence ends."""
    if not torch.equal(cu, cu_padded):
        return clear_padding(grad, cu, cu_padded)
    cleared = grad.clone()
    cleared[int(cu[-1]) :] = 0
    return cleared
