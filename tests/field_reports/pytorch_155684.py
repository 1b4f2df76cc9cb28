"""A wait in the capture raises on CUDA, and was swallowed on HIP: https://github.com/pytorch/pytorch/issues/155684"""

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
    return x + x.sum()


def reference(x: np.ndarray) -> np.ndarray:
    total = sum(int(value) for value in x)
    return np.array([value + total for value in x], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [{"x": Argument(rows_in(step, "x"))} for step in case.steps]


CLASS = "X"
TARGET = Target(
    name=__name__,
    summary="a sum that is added to what was summed",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=4096),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/pytorch/pytorch/issues/155684")
def faulty(x: torch.Tensor) -> torch.Tensor:
    """Fetches the sum to the host. HIP before ROCm 7.14 said nothing, and replayed the captured sum for ever."""
    return x + int(x.sum())
