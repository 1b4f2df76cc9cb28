"""In graph mode the page indices are only checked for size, never copied: https://github.com/flashinfer-ai/flashinfer/pull/2185"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, integer_of, rows_in


def attend(kv: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor) -> torch.Tensor:
    """The sum of each request's pages."""
    rows = kv_indptr.numel() - 1
    row = torch.searchsorted(kv_indptr[1:], torch.arange(kv_indices.numel(), device=kv.device), right=True)
    return kv.new_zeros(rows + 1).index_add(0, row, kv[kv_indices])[:rows]


class Wrapper:
    """Graphs over buffers that the first plan of a size makes, and each later plan refreshes."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._buffers: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, kv: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor) -> torch.Tensor:
        key = kv_indptr.numel(), kv_indices.numel()
        if key not in self._buffers:
            self._buffers[key] = kv.clone(), kv_indptr.clone(), kv_indices.clone()
        static_kv, indptr_buf, indices_buf = self._buffers[key]
        self._graphs.capture(key, lambda: attend(static_kv, indptr_buf, indices_buf))
        static_kv.copy_(kv)
        indptr_buf.copy_(kv_indptr)
        self.plan_indices(indices_buf, kv_indices)
        return self._graphs.replay(key).clone()  # type: ignore[no-any-return]

    def plan_indices(self, indices_buf: torch.Tensor, kv_indices: torch.Tensor) -> None:
        indices_buf.copy_(kv_indices)


def reference(kv: np.ndarray, kv_indptr: np.ndarray, kv_indices: np.ndarray) -> np.ndarray:
    bounds = itertools.pairwise(kv_indptr)
    return np.array([kv[kv_indices[begin:end]].sum() for begin, end in bounds], kv.dtype)


def build(case: Case) -> Sequence[Feed]:
    """The cache stays the same, and each request has as many pages as before: which they are is all that changes."""
    pages = integer_of(case, "pages")
    kv = np.arange(1, 65) ** 2
    feeds: list[Feed] = []
    for step in case.steps:
        first = rows_in(step, "first_page")
        indices = ((first[:, None] + np.arange(pages)) % len(kv)).ravel()
        indptr = np.arange(len(first) + 1) * pages
        feeds.append({"kv": Argument(kv), "kv_indptr": Argument(indptr), "kv_indices": Argument(indices)})
    return feeds


REPORT = "https://github.com/flashinfer-ai/flashinfer/pull/2185"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="persistent attention over paged caches, planned before each step",
    implementation=Runner(attend, Wrapper),
    reference=reference,
    fixed=(IntAxis("pages", simplest=1, most=16, common=(1, 2, 8)),),
    stepped=(RowsAxis("first_page", most=4096),),
    build=build,
)


class Forgetful(Wrapper):
    """Checks that the indices fit into their buffer, and leaves it as it was."""

    def plan_indices(self, indices_buf: torch.Tensor, kv_indices: torch.Tensor) -> None:
        if kv_indices.numel() > indices_buf.numel():
            raise ValueError(f"the buffer holds {indices_buf.numel()} indices, {kv_indices.numel()} are planned")


faulty = Runner(attend, Forgetful)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", REPORT, name="faulty")(faulty)
