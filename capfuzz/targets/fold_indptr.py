"""`fold_indptr(indptr, fold_factor)`: each request becomes `fold_factor` pseudo-requests of the same length.

The op is aiter's `_fold_seqlen_indptr` (`aiter/mla.py`), called once a layer inside the captured decode step.

- `indptr`: `[batch + 1]`, int32 or int64, on the device, non-decreasing; need not start at 0, may be a strided view.
- `fold_factor`: host int >= 1, baked at capture.
- returns `[batch * fold_factor + 1]` of the same dtype: `out[0] == 0`, then the running sum of every length repeated
  `fold_factor` times. The sum must fit the dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis.strategies import SearchStrategy

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.generate import BATCHES, CHANGES, LARGE_BATCHES, ROW_KINDS, changed_rows, choices, row_lengths
from capfuzz.targets.model import Target

FOLD_FACTOR = IntAxis("fold_factor", simplest=1, most=1024, common=(1, 2, 3, 4, 5, 8, 16))
DTYPE = ChoiceAxis("dtype", ("int32", "int64"))
LAYOUT = ChoiceAxis("layout", tuple(LAYOUTS))
LENGTHS = RowsAxis("lengths")
START = StepIntAxis("start", common=())  # any, drawn with the rows
# The largest sum that a case reaches: int32's own, and for int64 far enough that a sum kept in int32 wraps.
_LIMITS = {"int32": 2**31 - 1, "int64": 2**40}


def fold_indptr(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    return F.pad(torch.cumsum(lengths, 0), (1, 0)).to(indptr.dtype)


def reference(indptr: np.ndarray, fold_factor: int) -> np.ndarray:
    """The closed form: sub-request j of request i begins at `fold * (p[i] - p[0]) + j * length[i]`."""
    begins = indptr.astype(np.int64)
    begins -= begins[0]
    lengths = begins[1:] - begins[:-1]
    out = np.empty(lengths.size * fold_factor + 1, indptr.dtype)
    requests = out[:-1].reshape(lengths.size, fold_factor)
    requests[...] = fold_factor * begins[:-1, None] + lengths[:, None] * np.arange(fold_factor)
    out[-1] = fold_factor * begins[-1]
    return out


def build(case: Case) -> Sequence[Feed]:
    fold_factor, dtype = case.values["fold_factor"], str(case.values["dtype"])
    layout = LAYOUTS[str(case.values["layout"])]
    feeds: list[Feed] = []
    for index, step in enumerate(case.steps):
        lengths, start = step["lengths"], step["start"]
        assert isinstance(lengths, list) and isinstance(start, int) and isinstance(fold_factor, int)
        total = sum(lengths)
        if max(total * fold_factor, start + total) > np.iinfo(dtype).max:
            raise InvalidCaseError(f"case.steps[{index}].lengths", f"folded, their sum does not fit {dtype}")
        indptr = np.cumsum([start, *lengths], dtype=dtype)
        feeds.append({"indptr": Argument(indptr, layout), "fold_factor": fold_factor})
    return feeds


def strategy() -> SearchStrategy[Case]:
    batches = BATCHES * 4 + LARGE_BATCHES
    drawn = choices(batches, FOLD_FACTOR.common, DTYPE.common, LAYOUT.common, ROW_KINDS, CHANGES, (False, True))
    return drawn.map(_expand)


def _expand(drawn: tuple[Any, ...]) -> Case:
    batch, fold_factor, dtype, layout, kind, changes, offset_start, seed = drawn
    rng = np.random.default_rng(seed)
    limit = _LIMITS[dtype] // fold_factor
    start = int(rng.integers(1, 1000)) if offset_start else 0
    rows = [row_lengths(kind, batch, limit - start, rng)]
    for change in changes:
        rows += changed_rows(change, kind, batch, limit - start, rng)
    values: dict[str, int | str] = {"fold_factor": fold_factor, "dtype": dtype, "layout": layout}
    return Case(values, [{"lengths": lengths, "start": start} for lengths in rows])


TARGET = Target(
    name="fold_indptr",
    summary="repeat every request's length fold_factor times and accumulate (aiter's _fold_seqlen_indptr)",
    implementation=fold_indptr,
    reference=reference,
    fixed=(FOLD_FACTOR, DTYPE, LAYOUT),
    stepped=(LENGTHS, START),
    draw=strategy,
    build=build,
)


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/ROCm/aiter/pull/5202")
def scalar_store(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Seeds the output with a store to a 0-dim view, which copies a host scalar to the device."""
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    out = torch.empty(lengths.numel() + 1, dtype=indptr.dtype, device=indptr.device)
    out[0] = 0
    out[1:] = torch.cumsum(lengths, 0)
    return out


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/ROCm/aiter/issues/4375")
def item_read(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Takes a short cut when no request has tokens, for which the host must read the total."""
    if (indptr[-1] - indptr[0]).item() == 0:
        return indptr.new_zeros((indptr.numel() - 1) * fold_factor + 1)
    return fold_indptr(indptr, fold_factor)


_host_lengths: dict[int, list[int]] = {}


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F2: a host list baked at capture")
def host_lengths(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Keeps the lengths on the host, reads them while warming up, and stages them through pinned memory."""
    batch = indptr.numel() - 1
    if not torch.cuda.is_current_stream_capturing():
        _host_lengths[batch] = torch.diff(indptr).tolist()
    folded = np.repeat(np.array([0, *_host_lengths[batch]]), [1] + [fold_factor] * batch)
    staged = torch.from_numpy(np.cumsum(folded)).to(indptr.dtype).pin_memory()
    return staged.to(indptr.device, non_blocking=True)


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "fault class F15: an uninitialised element")
def unwritten_head(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Leaves the first element of `torch.empty` as it is."""
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    out = torch.empty(lengths.numel() + 1, dtype=indptr.dtype, device=indptr.device)
    out[1:] = torch.cumsum(lengths, 0)
    return out


_workspaces: dict[tuple[int, torch.dtype], torch.Tensor] = {}


@TARGET.variant(Verdict.DIVERGENCE, "not_idempotent", "fault class F14: state changed in place by every replay")
def accumulating_workspace(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Adds into a persistent workspace that is cleared by the host path only, never inside the graph."""
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    key = (lengths.numel(), indptr.dtype)
    if not torch.cuda.is_current_stream_capturing():
        _workspaces.clear()
        _workspaces[key] = torch.zeros(lengths.numel() + 1, dtype=indptr.dtype, device=indptr.device)
    out = _workspaces[key]
    out[1:] += torch.cumsum(lengths, 0).to(indptr.dtype)
    return out


@functools.lru_cache(maxsize=4)
def _cached_fold(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    return fold_indptr(indptr, fold_factor)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "https://github.com/ROCm/aiter/issues/5193")
def cached_tensor(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """An lru_cache keyed by the tensor object hands out what the first call with that buffer computed."""
    return _cached_fold(indptr, fold_factor)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="an empty batch still has one offset")
def empty_batch(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Returns no offsets at all for batch 0."""
    if indptr.numel() == 1:
        return indptr[:0]
    return fold_indptr(indptr, fold_factor)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Reads the base storage as if the view were contiguous, as a kernel does that is given only a pointer."""
    return fold_indptr(torch.as_strided(indptr, indptr.shape, (1,), 0), fold_factor)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F9: int32 overflow")
def int32_wrap(indptr: torch.Tensor, fold_factor: int) -> torch.Tensor:
    """Accumulates in int32 whatever the dtype, so that a large int64 total wraps."""
    lengths: Any = torch.diff(indptr).repeat_interleave(fold_factor)
    return F.pad(torch.cumsum(lengths.to(torch.int32), 0, dtype=torch.int32), (1, 0)).to(indptr.dtype)
