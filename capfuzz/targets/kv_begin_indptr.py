"""`kv_begin_indptr(kv_indptr, ...)`: where each pseudo-request's KV begins, and where the KV splits of each request begin.

Two tables of aiter's `mla_decode_fwd` (`aiter/mla.py`). The first belongs to the branch that folds heads into pseudo-requests
with context parallelism, beside `fold_indptr`; the second is `get_meta_param`. Both are built in the captured decode step.

- `kv_indptr`: `[batch + 1]`, int32 or int64, on the device, non-decreasing; need not start at 0, may be a strided view.
- `fold_factor`: host int >= 1, baked at capture.
- `num_kv_splits`: host int; 0 leaves the choice to the op, which takes what fills the compute units best, the least
  of equals.
- `total_kv`: host int, the *capacity* of the buffer of KV indices: under graphs that is not what the batch holds.
- `cu_num`: host int, the compute units of the device.
- returns `kv_begin_indptr`: `[batch * fold_factor + 1]` of the same dtype, `out[k] == kv_indptr[k // fold_factor]`. It is no
  CSR of lengths: the pseudo-requests of one request begin at one place.
- returns `num_kv_splits` (host int, baked) and `num_kv_splits_indptr`: int32 `[batch + 1]`, `out[i] == i * num_kv_splits`.

Nothing is persistent: both tables come fresh from the graph's pool. An empty batch has one split; aiter divides by the batch.
Padded requests have no KV: `kv_indptr` repeats its last offset, and so does the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, LawCall, Mode, TwoPart, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError, Value
from capfuzz.targets.model import Target

_MOST_SPLITS = 16
_OVERHEAD = 84.1  # of one more split, in tokens of KV: aiter's own constant
_FIRST_OFFSETS = (1, 2, 7)


def kv_begin_indptr(
    kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int
) -> dict[str, Any]:
    batch = kv_indptr.numel() - 1
    splits = num_kv_splits or pick_kv_splits(batch, total_kv, cu_num)
    begins = kv_indptr[:-1, None].expand(batch, fold_factor).reshape(-1)
    return {
        "kv_begin_indptr": torch.cat([begins, kv_indptr[-1:]]),
        "num_kv_splits": splits,
        "num_kv_splits_indptr": split_table(batch, splits, kv_indptr.device),
    }


def split_table(batch: int, splits: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, (batch + 1) * splits, splits, dtype=torch.int32, device=device)


def score_of(splits: int, batch: int, total_kv: int, cu_num: int) -> float:
    """How much of the compute units' time goes into KV, when every request's KV is read in that many pieces."""
    pieces = batch * splits
    average = total_kv / batch
    return pieces / (-(-pieces // cu_num) * cu_num) * average / (average + _OVERHEAD * splits)


@functools.lru_cache(maxsize=256)  # the number may be cached, the table on the device may not
def pick_kv_splits(batch: int, total_kv: int, cu_num: int) -> int:
    if batch == 0:
        return 1
    return max(range(1, _MOST_SPLITS + 1), key=lambda splits: score_of(splits, batch, total_kv, cu_num))


def reference(kv_indptr: np.ndarray, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Row by row. The scores are the op's own: two ways to round them would break ties in two ways."""
    batch = len(kv_indptr) - 1
    begins = [int(offset) for offset in kv_indptr[:-1] for _ in range(fold_factor)]
    splits, best = num_kv_splits, -1.0
    if splits == 0:
        splits = 1
        for candidate in range(1, _MOST_SPLITS + 1) if batch else ():
            score = score_of(candidate, batch, total_kv, cu_num)
            if score > best:
                best, splits = score, candidate
    table = np.zeros(batch + 1, np.int32)
    for row in range(batch):
        table[row + 1] = table[row] + splits
    return {
        "kv_begin_indptr": np.array([*begins, int(kv_indptr[-1])], kv_indptr.dtype),
        "num_kv_splits": splits,
        "num_kv_splits_indptr": table,
    }


def most_tokens(values: Mapping[str, Value]) -> int:
    """int64 goes far enough that an offset kept in int32 wraps."""
    return 2**40 if values["dtype"] == "int64" else 2**31 - 1 - max(_FIRST_OFFSETS)


def build(case: Case) -> Sequence[Feed]:
    dtype, layout = str(case.values["dtype"]), LAYOUTS[str(case.values["layout"])]
    spare = case.values["spare"]
    assert isinstance(spare, int)
    offsets: list[list[int]] = []
    for index, step in enumerate(case.steps):
        lengths, start = step["lengths"], step["start"]
        assert isinstance(lengths, list) and isinstance(start, int)
        if start + sum(lengths) > np.iinfo(dtype).max:
            raise InvalidCaseError(f"case.steps[{index}].start", f"the last offset does not fit {dtype}")
        offsets.append([start, *lengths])
    capacity = max(sum(step) for step in offsets) + spare
    fixed = {name: case.values[name] for name in ("fold_factor", "num_kv_splits", "cu_num")}
    return [{"kv_indptr": Argument(np.cumsum(step, dtype=dtype), layout), **fixed, "total_kv": capacity} for step in offsets]


TARGET = Target(
    name="kv_begin_indptr",
    summary="where each pseudo-request's KV begins, and its splits (aiter's mla_decode_fwd and get_meta_param)",
    implementation=kv_begin_indptr,
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        IntAxis("fold_factor", simplest=1, most=64, common=(1, 2, 3, 4, 5, 8)),
        IntAxis("num_kv_splits", simplest=0, most=64, common=(0, 0, 1, 2, 7, 16)),
        IntAxis("cu_num", simplest=1, most=512, common=(1, 80, 132, 256, 304)),
        IntAxis("spare", simplest=0, most=2**24, common=(0, 1, 4096, 2**20)),
    ),
    stepped=(RowsAxis("lengths", total=most_tokens), StepIntAxis("start", common=_FIRST_OFFSETS)),
    build=build,
)


@TARGET.law
def requests_keep_their_begin(call: LawCall) -> str | None:
    """The first pseudo-requests of the requests give `kv_indptr` back, rebased nowhere."""
    firsts = call.outputs["kv_begin_indptr"][:: call.inputs["fold_factor"]]
    if np.array_equal(firsts, call.inputs["kv_indptr"]):
        return None
    return f"the requests begin at {firsts.tolist()}, kv_indptr is {call.inputs['kv_indptr'].tolist()}"


@TARGET.law
def folds_compose(call: LawCall) -> str | None:
    """Folding by half of an even factor and then by 2 is folding by the factor."""
    half, odd = divmod(call.inputs["fold_factor"], 2)
    if odd:
        return None
    first = call.answer({**call.inputs, "fold_factor": half})["kv_begin_indptr"]
    twice = call.answer({**call.inputs, "kv_indptr": first, "fold_factor": 2})["kv_begin_indptr"]
    once = call.outputs["kv_begin_indptr"]
    return None if np.array_equal(twice, once) else f"in two folds {twice.tolist()}, in one {once.tolist()}"


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """Requests without KV at the end do not move what lies before them."""
    offsets, fold_factor = call.inputs["kv_indptr"], call.inputs["fold_factor"]
    live = int(np.searchsorted(offsets, offsets[-1]))  # the first row that begins at the end
    alone = call.answer({**call.inputs, "kv_indptr": offsets[: live + 1].copy()})["kv_begin_indptr"]
    padded = call.outputs["kv_begin_indptr"][: live * fold_factor + 1]
    return None if np.array_equal(padded, alone) else f"with padding {padded.tolist()}, without {alone.tolist()}"


@TARGET.law
def splits_are_even(call: LawCall) -> str | None:
    """Every request has `num_kv_splits` splits, which is what buffers are sized for."""
    table, splits = call.outputs["num_kv_splits_indptr"], call.outputs["num_kv_splits"]
    if table[0] == 0 and (np.diff(table) == splits).all():
        return None
    return f"{splits} splits a request, and the table is {table.tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Accumulates the splits behind a first offset that is stored as a scalar."""
    answer = kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, total_kv, cu_num)
    table = torch.empty_like(answer["num_kv_splits_indptr"])
    table[0] = 0
    table[1:] = torch.cumsum(torch.full_like(table[1:], answer["num_kv_splits"]), 0)
    return {**answer, "num_kv_splits_indptr": table}


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: the host reads the last offset")
def item_tail(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Takes the last offset to the host, to fill the last element with it."""
    answer = kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, total_kv, cu_num)
    answer["kv_begin_indptr"][-1:].fill_(int(kv_indptr[-1]))
    return answer


@functools.lru_cache(maxsize=1)
def _cached_table(batch: int, splits: int, tokens: int, device: torch.device) -> torch.Tensor:
    return split_table(batch, splits, device)


def _prepare_cached_table(
    mode: Mode, kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int
) -> torch.Tensor:
    batch = kv_indptr.numel() - 1
    splits = num_kv_splits or pick_kv_splits(batch, total_kv, cu_num)
    return _cached_table(batch, splits, int(kv_indptr[-1]), kv_indptr.device)


def cached_table(
    prepared: torch.Tensor, kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int
) -> dict[str, Any]:
    """Only an lru_cache owns the table, with the tokens of the step in its key: the next step's entry evicts it."""
    answer = kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, total_kv, cu_num)
    answer["num_kv_splits_indptr"].copy_(prepared)
    return answer


TARGET.variant(Verdict.DANGLING_BUFFER, source="https://github.com/ROCm/aiter/issues/5193; aiter #4587, #5194")(
    TwoPart(_prepare_cached_table, cached_table)
)


@TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F11: capture takes another branch; total_kv is a capacity")
def splits_for_capture(
    kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int
) -> dict[str, Any]:
    """Takes the most splits there are while capturing, whatever eager chooses."""
    if torch.cuda.is_current_stream_capturing():
        num_kv_splits = num_kv_splits or _MOST_SPLITS
    return kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, total_kv, cu_num)


_offsets: dict[int, list[int]] = {}


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault classes F2 and F13: staging is frozen into the graph")
def frozen_staging(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Folds the offsets on the host, as read while warming up, and stages them through fresh pinned memory."""
    answer = kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, total_kv, cu_num)
    batch = kv_indptr.numel() - 1
    if not torch.cuda.is_current_stream_capturing():
        _offsets[batch] = kv_indptr.tolist()
    folded = np.repeat(np.array(_offsets[batch]), [fold_factor] * batch + [1])
    staged = torch.from_numpy(folded).to(kv_indptr.dtype).pin_memory()
    return {**answer, "kv_begin_indptr": staged.to(kv_indptr.device, non_blocking=True)}


@TARGET.variant(Verdict.EAGER_ERROR, "ZeroDivisionError", "aiter's get_meta_param divides total_kv by the batch")
def divides_by_batch(
    kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int
) -> dict[str, Any]:
    """Has no answer for an empty batch."""
    batch = kv_indptr.numel() - 1
    splits = num_kv_splits or max(range(1, _MOST_SPLITS + 1), key=lambda s: score_of(s, batch, total_kv, cu_num))
    return kv_begin_indptr(kv_indptr, fold_factor, splits, total_kv, cu_num)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="aiter's ignore_total_kv: buffers are sized for the other choice")
def occupancy_only(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Chooses by the compute units alone, as if the KV had no end, so that short requests are cut into many splits."""
    endless = 2**50 * max(1, kv_indptr.numel() - 1)
    return kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, endless, cu_num)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="kv_indptr folded like a CSR of lengths (fold_indptr's rule)")
def folds_lengths(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Repeats the lengths and accumulates them, so that every pseudo-request has KV of its own."""
    answer = kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, total_kv, cu_num)
    lengths = torch.diff(kv_indptr).repeat_interleave(fold_factor)
    ends = (kv_indptr[:1] + torch.cumsum(lengths, 0)).to(kv_indptr.dtype)
    return {**answer, "kv_begin_indptr": torch.cat([kv_indptr[:1], ends])}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="repeat for repeat_interleave: right for a batch of one")
def repeats_whole(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Repeats the batch, not each request of it."""
    answer = kv_begin_indptr(kv_indptr, fold_factor, num_kv_splits, total_kv, cu_num)
    return {**answer, "kv_begin_indptr": torch.cat([kv_indptr[:-1].repeat(fold_factor), kv_indptr[-1:]])}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="only lengths are rebased, offsets into the KV indices are not")
def rebases(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Lets the first request begin at 0, as `fold_indptr` does."""
    return kv_begin_indptr(kv_indptr - kv_indptr[:1], fold_factor, num_kv_splits, total_kv, cu_num)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Reads the base storage as if the view were contiguous."""
    plain = torch.as_strided(kv_indptr, kv_indptr.shape, (1,), 0)
    return kv_begin_indptr(plain, fold_factor, num_kv_splits, total_kv, cu_num)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F9: int32 overflow")
def int32_wrap(kv_indptr: torch.Tensor, fold_factor: int, num_kv_splits: int, total_kv: int, cu_num: int) -> dict[str, Any]:
    """Keeps int64 offsets in int32 on the way."""
    narrow = kv_indptr.to(torch.int32).to(kv_indptr.dtype)
    return kv_begin_indptr(narrow, fold_factor, num_kv_splits, total_kv, cu_num)
