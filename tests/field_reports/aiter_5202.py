"""The leading zero of the folded offsets is stored as a scalar: https://github.com/ROCm/aiter/pull/5202"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target


def mended(lens: torch.Tensor) -> torch.Tensor:
    return F.pad(torch.cumsum(lens, 0, dtype=torch.int32), (1, 0))


def reference(lens: np.ndarray) -> np.ndarray:
    return np.array([lens[:end].sum() for end in range(len(lens) + 1)], np.int32)


def build(case: Case) -> Sequence[Feed]:
    return [{"lens": Argument(np.array(step["lens"], np.int32))} for step in case.steps]


CLASS = "H1"
TARGET = Target(
    name=__name__,
    summary="offsets of sequences from their lengths, in aiter's persistent MLA decode",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=4096),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/ROCm/aiter/pull/5202")
def faulty(lens: torch.Tensor) -> torch.Tensor:
    """Stores a Python number into a 0-dim view, which copies from pageable host memory."""
    out = torch.empty(lens.numel() + 1, dtype=torch.int32, device=lens.device)
    out[0] = 0
    out[1:] = torch.cumsum(lens, 0)
    return out
