"""The offsets of one step are baked into the graph: https://github.com/pytorch/torchtitan/pull/3893"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in


def mended(x: torch.Tensor, cu: torch.Tensor, cu_cpu: torch.Tensor) -> torch.Tensor:
    """The sum of each sequence's tokens; the offsets are read where the tokens are."""
    rows = cu.numel() - 1
    row = torch.searchsorted(cu[1:], torch.arange(x.numel(), device=x.device), right=True)
    return x.new_zeros(rows + 1).index_add(0, row, x)[:rows]


def reference(x: np.ndarray, cu: np.ndarray, cu_cpu: np.ndarray) -> np.ndarray:
    return np.array([x[begin:end].sum() for begin, end in itertools.pairwise(cu)], x.dtype)


def build(case: Case) -> Sequence[Feed]:
    """The tokens stay the same, so that the offsets are all that changes."""
    lens = [rows_in(step, "lens") for step in case.steps]
    x = np.arange(1, 2 + max(int(rows.sum()) for rows in lens))
    feeds: list[Feed] = []
    for rows in lens:
        cu = np.concatenate(([0], rows.cumsum()))
        feeds.append({"x": Argument(x), "cu": Argument(cu), "cu_cpu": Argument(cu, space=Space.HOST)})
    return feeds


CLASS = "F"
TARGET = Target(
    name=__name__,
    summary="variable-length attention over prefill and decode in one batch",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=256, total=1 << 16),),
    build=build,
)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "https://github.com/pytorch/torchtitan/pull/3893")
def faulty(x: torch.Tensor, cu: torch.Tensor, cu_cpu: torch.Tensor) -> torch.Tensor:
    """Cuts the tokens at the host's offsets, which are constants of the graph."""
    parts = x[: int(cu_cpu[-1])].split(cu_cpu.diff().tolist())
    return torch.stack([x.new_zeros(()), *(part.sum() for part in parts)])[1:]
