"""A kernel without a cached choice is tuned inside the capture, which waits: https://github.com/triton-lang/triton/issues/10596"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in

Kernel = Callable[[torch.Tensor], torch.Tensor]
CANDIDATES: tuple[Kernel, ...] = (lambda x: x + x, lambda x: x * 2)
BEST: dict[tuple[int, ...], Kernel] = {}


def tuned(x: torch.Tensor) -> Kernel:
    """The fastest kernel for this shape: each is timed at the first miss."""
    key = tuple(x.shape)
    if key not in BEST:
        BEST[key] = min(CANDIDATES, key=lambda kernel: seconds_of(kernel, x))
    return BEST[key]


def seconds_of(kernel: Kernel, x: torch.Tensor) -> float:
    begun = time.perf_counter()
    kernel(x)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def tune(mode: Mode, x: torch.Tensor) -> Kernel:
    return tuned(x)


def launch(kernel: Kernel, x: torch.Tensor) -> torch.Tensor:
    """Runs what was chosen before the capture."""
    return kernel(x)


def reference(x: np.ndarray) -> np.ndarray:
    return 2 * x


def build(case: Case) -> Sequence[Feed]:
    heads = np.arange(integer_of(case, "heads"))
    return [{"x": Argument(rows_in(step, "x")[:, None] + heads)} for step in case.steps]


CLASS = "H3"
TARGET = Target(
    name=__name__,
    summary="an autotuned kernel, its key the number of rows and of heads",
    implementation=TwoPart(tune, launch),
    reference=reference,
    fixed=(IntAxis("heads", simplest=1, most=16, common=(1, 2, 8)),),
    stepped=(RowsAxis("x", most=4096),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/triton-lang/triton/issues/10596")
def faulty(x: torch.Tensor) -> torch.Tensor:
    """Tunes at the first launch with a new key, wherever that is."""
    return tuned(x)(x)
