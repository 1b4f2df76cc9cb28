"""The number of tiles comes from the offsets' contents, and is the grid of the graph: https://github.com/flashinfer-ai/flashinfer/issues/626"""

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


def plan(mode: Mode, q: torch.Tensor, qo_indptr: torch.Tensor, qo_indptr_cpu: torch.Tensor, tile: int) -> int:
    """The grid: one tile for each `tile` queries of the batch."""
    return -(-int(qo_indptr_cpu[-1]) // tile)


def plan_for_bound(mode: Mode, q: torch.Tensor, qo_indptr: torch.Tensor, qo_indptr_cpu: torch.Tensor, tile: int) -> int:
    """The grid for as many queries as there may be. Surplus tiles do nothing."""
    return -(-q.numel() // tile)


def prefill(tiles: int, q: torch.Tensor, qo_indptr: torch.Tensor, qo_indptr_cpu: torch.Tensor, tile: int) -> torch.Tensor:
    """A launch of `tiles` tiles, each of which looks up on the device how many of its queries are real."""
    out = torch.zeros_like(q)
    covered = q[: tiles * tile]
    live = torch.arange(covered.numel(), device=q.device) < qo_indptr[-1]
    out[: covered.numel()] = torch.where(live, covered * 2, 0)
    return out


def reference(q: np.ndarray, qo_indptr: np.ndarray, qo_indptr_cpu: np.ndarray, tile: int) -> np.ndarray:
    end = int(qo_indptr[-1])
    return np.concatenate((q[:end] * 2, np.zeros_like(q[end:])))


def build(case: Case) -> Sequence[Feed]:
    """The queries stay the same, so that the offsets are all that changes."""
    lens = [rows_in(step, "lens") for step in case.steps]
    q = np.arange(1, 2 + max(int(rows.sum()) for rows in lens))
    feeds: list[Feed] = []
    for rows in lens:
        indptr = np.concatenate(([0], rows.cumsum()))
        arrays = {"q": Argument(q), "qo_indptr": Argument(indptr), "qo_indptr_cpu": Argument(indptr, space=Space.HOST)}
        feeds.append({**arrays, "tile": integer_of(case, "tile")})
    return feeds


REPORT = "https://github.com/flashinfer-ai/flashinfer/issues/626"
CLASS = "F"
TARGET = Target(
    name=__name__,
    summary="prefill in tiles of queries",
    implementation=TwoPart(plan_for_bound, prefill),
    reference=reference,
    fixed=(IntAxis("tile", simplest=1, most=128, common=(1, 16, 64)),),
    stepped=(RowsAxis("lens", most=256, total=1 << 16),),
    build=build,
)


def prefill_as_planned(
    tiles: int, q: torch.Tensor, qo_indptr: torch.Tensor, qo_indptr_cpu: torch.Tensor, tile: int
) -> torch.Tensor:
    """Is launched for the queries of the captured batch, whatever the later offsets say."""
    return prefill(tiles, q, qo_indptr, qo_indptr_cpu, tile)


faulty = TwoPart(plan, prefill_as_planned)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", REPORT, name="faulty")(faulty)
