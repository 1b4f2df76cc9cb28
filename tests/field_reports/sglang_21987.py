"""Capture describes the queries by a stride, replay by offsets: https://github.com/sgl-project/sglang/pull/21987"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_of, rows_in


def ragged(mode: Mode, x: torch.Tensor, cu: torch.Tensor, draft: int) -> int | None:
    """No stride: one description for capture and replay."""
    return None


def uniform_at_capture(mode: Mode, x: torch.Tensor, cu: torch.Tensor, draft: int) -> int | None:
    return draft if mode is Mode.CAPTURE else None


def attend(stride: int | None, x: torch.Tensor, cu: torch.Tensor, draft: int) -> torch.Tensor:
    """The sum of each request's accepted tokens: at a uniform stride, or at the offsets `cu`."""
    rows = cu.numel() - 1
    if stride is not None:
        return x.view(rows, stride).sum(1)
    row = torch.searchsorted(cu[1:], torch.arange(x.numel(), device=x.device), right=True)
    return x.new_zeros(rows + 1).index_add(0, row, x)[:rows]


def reference(x: np.ndarray, cu: np.ndarray, draft: int) -> np.ndarray:
    return np.array([x[begin:end].sum() for begin, end in itertools.pairwise(cu)], x.dtype)


def build(case: Case) -> Sequence[Feed]:
    """What is captured is a dummy batch: every request accepts the whole draft. The tokens stay the same."""
    draft = integer_of(case, "draft")
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        accepted = rows_in(step, "accepted")
        lens = np.minimum(accepted, draft) if number else np.full_like(accepted, draft)
        x = np.arange(1, draft * len(lens) + 1)
        feeds.append({"x": Argument(x), "cu": Argument(np.concatenate(([0], lens.cumsum()))), "draft": draft})
    return feeds


REPORT = "https://github.com/sgl-project/sglang/pull/21987"
CLASS = "F"
TARGET = Target(
    name=__name__,
    summary="draft tokens that were accepted, a few of each request",
    implementation=TwoPart(ragged, attend),
    reference=reference,
    fixed=(IntAxis("draft", simplest=1, most=16, common=(1, 4, 8)),),
    stepped=(RowsAxis("accepted", most=16),),
    build=build,
)


def attend_at_stride(stride: int | None, x: torch.Tensor, cu: torch.Tensor, draft: int) -> torch.Tensor:
    """Is specialised to the uniform layout that capture describes, and replayed for ragged batches."""
    return attend(stride, x, cu, draft)


faulty = TwoPart(uniform_at_capture, attend_at_stride)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", REPORT, name="faulty")(faulty)
