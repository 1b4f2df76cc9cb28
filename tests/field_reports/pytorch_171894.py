"""A pinned constant of a compiled function dies before the graph that copies it: https://github.com/pytorch/pytorch/issues/171894"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in


def trace_scalar(mode: Mode, **inputs: Any) -> int:
    """Compiling leaves a number in the compiled code."""
    return int(inputs["x"].numel())


def filled(size: int, /, **inputs: Any) -> torch.Tensor:
    """The compiled code makes the constant by a fill."""
    x: torch.Tensor = inputs["x"]
    return x + torch.full((), size, dtype=x.dtype, device=x.device)


def reference(x: np.ndarray) -> np.ndarray:
    return np.array([int(value) + x.size for value in x], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [{"x": Argument(rows_in(step, "x"))} for step in case.steps]


CLASS = "L"
TARGET = Target(
    name=__name__,
    summary="a compiled function with a constant that the host knows",
    implementation=TwoPart(trace_scalar, filled),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=512),),
    build=build,
)


def trace_constant(mode: Mode, **inputs: Any) -> torch.Tensor:
    """Compiling lifts the constant into a pinned tensor, which lives as long as the compiled code."""
    x: torch.Tensor = inputs["x"]
    return torch.tensor(x.numel(), dtype=x.dtype, pin_memory=x.is_cuda)


def copied(size: torch.Tensor, /, **inputs: Any) -> torch.Tensor:
    """The compiled code copies the constant to the device; the graph is replayed when nobody owns that any more."""
    x: torch.Tensor = inputs["x"]
    return x + size.to(x.device, non_blocking=True)


faulty = TwoPart(trace_constant, copied)
TARGET.variant(Verdict.DANGLING_BUFFER, None, "https://github.com/pytorch/pytorch/issues/171894", name="faulty")(faulty)
