"""Replay refreshes the generic lengths, and leaves out the override of a layer: https://github.com/vllm-project/vllm-ascend/pull/10895"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in

# The lengths that each captured operator reads, one buffer for each batch size.
BUFFERS: dict[int, torch.Tensor] = {}


def update(lens: torch.Tensor) -> torch.Tensor:
    """Writes the operator's lengths where the graph reads them."""
    return BUFFERS.setdefault(lens.numel(), torch.empty_like(lens)).copy_(lens)


def prepare(mode: Mode, values: torch.Tensor, seq_lens: torch.Tensor, kept: int) -> torch.Tensor:
    """The layer attends to the `kept` tokens that were selected, or to all where there are fewer."""
    return update(seq_lens.clamp(max=kept))


def attend(lens: torch.Tensor, values: torch.Tensor, seq_lens: torch.Tensor, kept: int) -> torch.Tensor:
    inside = torch.arange(values.shape[1], device=values.device) < lens.unsqueeze(1)
    return (values * inside).sum(1)


def reference(values: np.ndarray, seq_lens: np.ndarray, kept: int) -> np.ndarray:
    return np.array([row[: min(length, kept)].sum() for row, length in zip(values, seq_lens, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    width = 32
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = np.minimum(rows_in(step, "seq_lens"), width)
        values = np.arange(1, lens.size * width + 1).reshape(lens.size, width) + number
        feeds.append({"values": Argument(values), "seq_lens": Argument(lens), "kept": integer_of(case, "kept")})
    return feeds


REPORT = "https://github.com/vllm-project/vllm-ascend/pull/10895"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="sparse attention that overrides the lengths of its layers",
    implementation=TwoPart(prepare, attend),
    reference=reference,
    fixed=(IntAxis("kept", simplest=1, most=64, common=(1, 8, 24)),),
    stepped=(RowsAxis("seq_lens", most=64),),
    build=build,
)


def prepare_generic(mode: Mode, values: torch.Tensor, seq_lens: torch.Tensor, kept: int) -> torch.Tensor:
    return update(seq_lens) if mode is Mode.REPLAY else prepare(mode, values, seq_lens, kept)


def attend_to_all(lens: torch.Tensor, values: torch.Tensor, seq_lens: torch.Tensor, kept: int) -> torch.Tensor:
    """Is captured with the layer's lengths, and replayed with everyone's."""
    return attend(lens, values, seq_lens, kept)


faulty = TwoPart(prepare_generic, attend_to_all)
TARGET.variant(Verdict.DIVERGENCE, "values", REPORT, name="faulty")(faulty)
