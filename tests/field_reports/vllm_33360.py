"""The longest encoder length is frozen when a dummy batch without encoder is captured: https://github.com/vllm-project/vllm/pull/33360"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in


def longest(mode: Mode, values: torch.Tensor, enc_lens: torch.Tensor, enc_lens_cpu: torch.Tensor) -> int:
    return max(enc_lens_cpu.tolist(), default=0)


def longest_or_bound(mode: Mode, values: torch.Tensor, enc_lens: torch.Tensor, enc_lens_cpu: torch.Tensor) -> int:
    """The model's longest encoder input where a graph is captured."""
    return values.shape[1] if mode is Mode.CAPTURE else longest(mode, values, enc_lens, enc_lens_cpu)


def cross_attend(width: int, values: torch.Tensor, enc_lens: torch.Tensor, enc_lens_cpu: torch.Tensor) -> torch.Tensor:
    """A kernel that is launched for the longest length of the batch."""
    inside = torch.arange(width, device=values.device) < enc_lens.unsqueeze(1)
    return (values[:, :width] * inside).sum(1)


def reference(values: np.ndarray, enc_lens: np.ndarray, enc_lens_cpu: np.ndarray) -> np.ndarray:
    return np.array([row[:length].sum() for row, length in zip(values, enc_lens, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    """What is captured is a dummy batch: as many requests, none with encoder input."""
    width = integer_of(case, "width")
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = np.minimum(rows_in(step, "enc_lens"), width if number else 0)
        values = np.arange(1, lens.size * width + 1).reshape(lens.size, width) + number
        arguments = {"values": Argument(values), "enc_lens": Argument(lens)}
        feeds.append({**arguments, "enc_lens_cpu": Argument(lens, space=Space.HOST)})
    return feeds


REPORT = "https://github.com/vllm-project/vllm/pull/33360"
CLASS = "F"
TARGET = Target(
    name=__name__,
    summary="cross-attention to encoder inputs, captured with a dummy batch",
    implementation=TwoPart(longest_or_bound, cross_attend),
    reference=reference,
    fixed=(IntAxis("width", simplest=1, most=64, common=(1, 16, 32)),),
    stepped=(RowsAxis("enc_lens", most=64),),
    build=build,
)


def cross_attend_nothing(width: int, values: torch.Tensor, enc_lens: torch.Tensor, enc_lens_cpu: torch.Tensor) -> torch.Tensor:
    """Is captured with the dummy batch's longest length, which is zero, and attends to nothing for ever."""
    return cross_attend(width, values, enc_lens, enc_lens_cpu)


faulty = TwoPart(longest, cross_attend_nothing)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", REPORT, name="faulty")(faulty)
