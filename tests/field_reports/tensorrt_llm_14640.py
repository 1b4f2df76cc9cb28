"""The host's mirror of lengths sizes a map of the device's, and they disagree in a warm-up: https://github.com/NVIDIA/TensorRT-LLM/pull/14640"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in

LONGEST = 16


def host_lens(mode: Mode, **inputs: Any) -> torch.Tensor:
    """The host's lengths. A batch for a capture is made up: one token a request, and the device may have others."""
    lens: torch.Tensor = inputs["lens_cpu"]
    return torch.ones_like(lens) if mode is Mode.CAPTURE else lens


def sums_of(x: torch.Tensor, lens: torch.Tensor, tokens: int) -> torch.Tensor:
    """The sum of each request's tokens, of which the first `tokens` are looked at; what no request owns goes into a dump."""
    at = torch.arange(tokens, device=x.device)
    request = torch.searchsorted(lens.cumsum(0), at, right=True)
    return x.new_zeros(lens.numel() + 1).index_add(0, request, x[:tokens])[:-1]


def mended(lens_cpu: torch.Tensor, /, **inputs: Any) -> torch.Tensor:
    """Looks at all tokens that there may be."""
    x: torch.Tensor = inputs["x"]
    return sums_of(x, inputs["lens"], x.numel())


def reference(x: np.ndarray, lens: np.ndarray, lens_cpu: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lens)
    return np.array([x[end - length : end].sum() for end, length in zip(ends, lens, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = rows_in(step, "lens")
        x = 1000 * (number + 1) + np.arange(lens.size * LONGEST)
        feeds.append({"x": Argument(x), "lens": Argument(lens), "lens_cpu": Argument(lens.copy(), space=Space.HOST)})
    return feeds


CLASS = "M"
TARGET = Target(
    name=__name__,
    summary="the map from tokens to requests of a Mamba layer",
    implementation=TwoPart(host_lens, mended),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", least=1, most=LONGEST),),
    build=build,
)


def sized_by_host(lens_cpu: torch.Tensor, /, **inputs: Any) -> torch.Tensor:
    """Looks at as many tokens as the host's lengths add up to, to spare a wait for the device's."""
    return sums_of(inputs["x"], inputs["lens"], int(lens_cpu.sum()))


faulty = TwoPart(host_lens, sized_by_host)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/NVIDIA/TensorRT-LLM/pull/14640", name="faulty")(faulty)
