"""A prefetch on a side stream is not joined before capture ends: https://github.com/vllm-project/vllm/pull/57785"""

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

Answer = tuple[torch.Tensor, torch.Tensor]


def prefetch(weights: torch.Tensor, side: torch.cuda.Stream) -> torch.Tensor:
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return weights * 2


def mended(x: torch.Tensor, weights: torch.Tensor) -> Answer:
    side = torch.cuda.Stream()
    fetched = prefetch(weights, side)
    y = x + 1
    torch.cuda.current_stream().wait_stream(side)
    return y, fetched


def reference(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + 1, weights * 2


def build(case: Case) -> Sequence[Feed]:
    rows = [rows_in(step, "x") for step in case.steps]
    return [{"x": Argument(x), "weights": Argument(np.arange(4) + number)} for number, x in enumerate(rows)]


CLASS = "H3"
TARGET = Target(
    name=__name__,
    summary="the weights of the next layer are fetched beside this one",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=4096),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "unjoined_stream", "https://github.com/vllm-project/vllm/pull/57785")
def faulty(x: torch.Tensor, weights: torch.Tensor) -> Answer:
    """Starts the prefetch and goes on; whoever needs the weights waits, but not before the segment ends."""
    fetched = prefetch(weights, torch.cuda.Stream())
    return x + 1, fetched
