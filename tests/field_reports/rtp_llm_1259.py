"""The offsets are copied into a new buffer in a function that replay calls as well: https://github.com/alibaba/rtp-llm/pull/1259"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in


class Operator:
    """Owns the offsets that a kernel reads."""

    def __init__(self) -> None:
        self.cu_seq_lens = torch.empty(0)

    def copy(self, cu_seq_lens: torch.Tensor) -> Operator:
        self.cu_seq_lens = torch.empty_like(cu_seq_lens)
        self.cu_seq_lens.copy_(cu_seq_lens)
        return self

    def refresh(self, cu_seq_lens: torch.Tensor) -> Operator:
        if self.cu_seq_lens.shape != cu_seq_lens.shape:
            self.cu_seq_lens = torch.empty_like(cu_seq_lens)
        self.cu_seq_lens.copy_(cu_seq_lens)
        return self


OPERATORS: dict[tuple[str, int], Operator] = {}


def operator(name: str, cu_seq_lens: torch.Tensor) -> Operator:
    return OPERATORS.setdefault((name, cu_seq_lens.numel()), Operator())


def prepare(mode: Mode, cu_seq_lens: torch.Tensor) -> Operator:
    """Allocates once for each batch size, as there is one graph for each."""
    return operator("refreshed", cu_seq_lens).refresh(cu_seq_lens)


def lengths(prepared: Operator, cu_seq_lens: torch.Tensor) -> torch.Tensor:
    return prepared.cu_seq_lens[1:] - prepared.cu_seq_lens[:-1]


def reference(cu_seq_lens: np.ndarray) -> np.ndarray:
    return np.diff(cu_seq_lens)


def build(case: Case) -> Sequence[Feed]:
    return [{"cu_seq_lens": Argument(np.concatenate(([0], rows_in(step, "lens").cumsum())))} for step in case.steps]


REPORT = "https://github.com/alibaba/rtp-llm/pull/1259"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="offsets of a verify batch, copied for the kernel before each step",
    implementation=TwoPart(prepare, lengths),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=4096),),
    build=build,
)


def prepare_anew(mode: Mode, cu_seq_lens: torch.Tensor) -> Operator:
    return operator("new", cu_seq_lens).copy(cu_seq_lens)


def lengths_of_dropped(prepared: Operator, cu_seq_lens: torch.Tensor) -> torch.Tensor:
    """Reads offsets that the next preparation drops: the graph keeps their address, and the allocator gives it away."""
    return lengths(prepared, cu_seq_lens)


faulty = TwoPart(prepare_anew, lengths_of_dropped)
TARGET.variant(Verdict.DANGLING_BUFFER, None, REPORT, name="faulty")(faulty)
