"""The guard around a wait reads a flag that nobody sets any more: https://github.com/vllm-project/vllm-ascend/pull/16052"""

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


class ForwardContext:
    """The flag was moved to the stream; the old name is still here, and always false."""

    capturing = False


def token_mask(seq_lens: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The draft tokens that belong to a request; the rest of the buffer is -1."""
    inside = torch.arange(tokens.numel(), device=tokens.device) < seq_lens.sum()
    return torch.where(inside, tokens, -1)


def reference(seq_lens: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    total = int(seq_lens.sum())
    return np.concatenate((tokens[:total], np.full(len(tokens) - total, -1)))


def build(case: Case) -> Sequence[Feed]:
    lens = [rows_in(step, "seq_lens") for step in case.steps]
    tokens = np.arange(1 + max(int(rows.sum()) for rows in lens))
    return [{"seq_lens": Argument(rows), "tokens": Argument(tokens + number)} for number, rows in enumerate(lens)]


CLASS = "H2"
TARGET = Target(
    name=__name__,
    summary="the draft tokens of all requests in one padded buffer",
    implementation=token_mask,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("seq_lens", most=256, total=1 << 16),),
    build=build,
)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/vllm-project/vllm-ascend/pull/16052")
def faulty(seq_lens: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Waits for the device unless a flag is set that capture does not set, and fetches the sum."""
    if not ForwardContext.capturing:
        torch.cuda.synchronize()
    total = int(seq_lens.sum().item())
    out = tokens.clone()
    out[total:] = -1
    return out
