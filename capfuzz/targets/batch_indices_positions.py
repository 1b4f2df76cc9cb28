"""`batch_indices_positions(batch_indices, positions, indptr, seq_lens)`: request and position of every token that is appended.

FlashInfer's `get_batch_indices_positions` (`flashinfer/page.py`), which says where `append_paged_kv_cache` writes; with
preallocated outputs it is part of the graph.

- `batch_indices`, `positions`: int32 `[nnz]`, on the device, persistent; every element of both is written. `nnz`, their size,
  is a host int: the tokens of the bucket.
- `indptr`: `[batch + 1]`, int32 or int64, on the device: where each request's appended tokens lie. It need not start at 0
  nor end at `nnz`, and a request may append none.
- `seq_lens`: `[batch]`, of the same dtype, on the device, may be a strided view: the length of each sequence *with* what is
  appended. A length below the number of appended tokens gives negative positions; nobody checks.
- padding: tokens outside `indptr` get request -1, which the append leaves out, and position 0. Padded requests append nothing;
  their lengths are what the last batch left.
- returns both as a dict: a request's last token is at `seq_lens - 1`, the others come before it, one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, LawCall, Mode, TwoPart, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.model import Target

_STALE = 7  # what padded requests hold: a length that a careless op would use
_FARTHEST_START = 256
Answer = dict[str, torch.Tensor]


def batch_indices_positions(
    batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor
) -> Answer:
    tokens = torch.arange(batch_indices.numel(), dtype=indptr.dtype, device=indptr.device)
    # 0 for tokens before the first request, one more than there are requests for those behind the last.
    place = torch.searchsorted(indptr.contiguous(), tokens, right=True)
    batch_indices.copy_((place - 1).masked_fill(place > seq_lens.numel(), -1))
    shift = F.pad(seq_lens - indptr[1:], (1, 1)).index_select(0, place)
    positions.copy_((tokens + shift).masked_fill(batch_indices < 0, 0))
    return {"batch_indices": batch_indices, "positions": positions}


def reference(
    batch_indices: np.ndarray, positions: np.ndarray, indptr: np.ndarray, seq_lens: np.ndarray
) -> dict[str, np.ndarray]:
    """Request by request, its tokens counted down from its end."""
    requests, places = np.full(len(batch_indices), -1, np.int32), np.zeros(len(positions), np.int32)
    offsets = indptr.tolist()
    for request, length in enumerate(seq_lens.tolist()):
        begin, end = offsets[request : request + 2]
        if begin < end:
            requests[begin:end] = request
            places[begin:end] = range(length - (end - begin), length)
    return {"batch_indices": requests, "positions": places}


def build(case: Case) -> Sequence[Feed]:
    dtype, layout = str(case.values["dtype"]), LAYOUTS[str(case.values["layout"])]
    spare = case.values["spare"]
    assert isinstance(spare, int)
    indptrs: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for index, step in enumerate(case.steps):
        appended, seq_lens, live, start = step["appended"], step["seq_lens"], step["live"], step["start"]
        assert isinstance(appended, list) and isinstance(seq_lens, list) and isinstance(live, int) and isinstance(start, int)
        if start > _FARTHEST_START:
            raise InvalidCaseError(f"case.steps[{index}].start", f"must be at most {_FARTHEST_START}, is {start}")
        padded = len(appended) - live
        indptrs.append(np.cumsum([start, *appended[:live], *[0] * padded], dtype=dtype))
        lengths.append(np.array([*seq_lens[:live], *[_STALE] * padded], dtype))
    nnz = max(int(indptr[-1]) for indptr in indptrs) + spare
    return [
        {
            "batch_indices": Argument(np.full(nnz, 12345, np.int32)),
            "positions": Argument(np.full(nnz, -9, np.int32)),
            "indptr": Argument(indptr, layout),
            "seq_lens": Argument(seq_lens, layout),
        }
        for indptr, seq_lens in zip(indptrs, lengths, strict=True)
    ]


TARGET = Target(
    name="batch_indices_positions",
    summary="request and position of every appended token (FlashInfer's get_batch_indices_positions)",
    implementation=batch_indices_positions,
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        IntAxis("spare", simplest=0, most=256, common=(0, 1, 5, 64)),
    ),
    stepped=(
        RowsAxis("appended", most=2048, total=2048),
        RowsAxis("seq_lens", most=2**30),
        StepIntAxis("live", up_to_batch=True),
        StepIntAxis("start"),
    ),
    build=build,
    equivalent_mutants={
        "drop_clone@batch_indices_positions:6": "searchsorted takes offsets that are not contiguous too, with a warning"
    },
)


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """Appended tokens get the same without padded tokens, and without the requests at the end that append nothing."""
    indptr = call.inputs["indptr"]
    total = int(indptr[-1])
    live = int(np.searchsorted(indptr, indptr[-1]))  # the first request that begins at the end
    if total == len(call.outputs["positions"]) and live == len(indptr) - 1:  # nothing is padded
        return None
    alone = call.answer(
        {
            "batch_indices": np.full(total, -3, np.int32),
            "positions": np.full(total, -3, np.int32),
            "indptr": indptr[: live + 1].copy(),
            "seq_lens": call.inputs["seq_lens"][:live].copy(),
        }
    )
    for name, answer in alone.items():
        if not np.array_equal(call.outputs[name][:total], answer):
            return f"{name}: with padding {call.outputs[name][:total].tolist()}, without {answer.tolist()}"
    return None


@TARGET.law
def last_token_ends_the_sequence(call: LawCall) -> str | None:
    """The last appended token of each request is the last of its sequence."""
    indptr, seq_lens = call.inputs["indptr"], call.inputs["seq_lens"]
    appends = np.diff(indptr) > 0
    last = call.outputs["positions"][indptr[1:][appends] - 1]
    return None if np.array_equal(last, seq_lens[appends] - 1) else f"sequences of {seq_lens.tolist()} end at {last.tolist()}"


@TARGET.law
def requests_have_their_tokens(call: LawCall) -> str | None:
    """Counting the tokens of each request gives `indptr`'s lengths back; all others are marked as padding."""
    lengths = np.diff(call.inputs["indptr"])
    counts = np.bincount(call.outputs["batch_indices"] + 1, minlength=len(lengths) + 1)
    padded = len(call.outputs["batch_indices"]) - int(lengths.sum())
    if counts[0] == padded and np.array_equal(counts[1:], lengths):
        return None
    return f"{counts[0]} padded tokens, requests have {counts[1:].tolist()}, not {lengths.tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault classes F4 and F17: flashinfer/page.py fills only batch_indices")
def positions_not_reset(
    batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor
) -> Answer:
    """Marks padded tokens in one of the two outputs; their positions are those of an earlier, larger batch."""
    kept = positions.clone()
    answer = batch_indices_positions(batch_indices, positions, indptr, seq_lens)
    positions.copy_(torch.where(batch_indices < 0, kept, positions))
    return answer


@TARGET.variant(
    Verdict.REFERENCE_MISMATCH, source="positions counted from the first appended token: what is cached is forgotten"
)
def left_aligned(batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor) -> Answer:
    """Numbers the appended tokens of each request from 0."""
    return batch_indices_positions(batch_indices, positions, indptr, torch.diff(indptr))


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: request 0 is no sentinel, its cache is written to")
def pads_with_request_0(
    batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor
) -> Answer:
    """Gives padded tokens to request 0."""
    answer = batch_indices_positions(batch_indices, positions, indptr, seq_lens)
    batch_indices.clamp_(min=0)
    return answer


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F17: requests that append nothing")
def skips_idle_requests(
    batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor
) -> Answer:
    """Numbers the requests by the places where tokens begin, of which a request without tokens has none of its own."""
    begins = torch.zeros(batch_indices.numel() + 1, dtype=torch.int32, device=indptr.device)
    begins.index_fill_(0, indptr[:-1].long(), 1)
    owner = (torch.cumsum(begins, 0)[:-1] - 1).clamp(min=0)
    shift = F.pad(seq_lens - indptr[1:], (0, 1)).index_select(0, owner)
    tokens = torch.arange(batch_indices.numel(), dtype=indptr.dtype, device=indptr.device)
    live = (tokens >= indptr[:1]) & (tokens < indptr[-1:])
    batch_indices.copy_(torch.where(live, owner, -1))
    positions.copy_(torch.where(live, tokens + shift, 0))
    return {"batch_indices": batch_indices, "positions": positions}


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor) -> Answer:
    """Ends the table of requests with a padded one, whose length is stored as a scalar."""
    shift = torch.empty(seq_lens.numel() + 1, dtype=seq_lens.dtype, device=seq_lens.device)
    shift[:-1] = seq_lens
    shift[-1] = 0
    return batch_indices_positions(batch_indices, positions, indptr, shift[:-1])


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: indexing by a mask")
def masks_tokens(batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor) -> Answer:
    """Computes for the appended tokens only, which a mask picks: their number is the host's to know."""
    tokens = torch.arange(batch_indices.numel(), dtype=indptr.dtype, device=indptr.device)
    appended = tokens[(tokens >= indptr[:1]) & (tokens < indptr[-1:])]
    places = appended.long()
    owner = torch.searchsorted(indptr[1:].contiguous(), appended, right=True)
    batch_indices.fill_(-1).index_copy_(0, places, owner.int())
    positions.zero_().index_copy_(0, places, (appended + (seq_lens - indptr[1:])[owner]).int())
    return {"batch_indices": batch_indices, "positions": positions}


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "fault class F15; FlashInfer's outputs were torch.empty at first")
def fresh_outputs(batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor) -> Answer:
    """Answers in fresh memory, of which padded tokens are not written."""
    answer = batch_indices_positions(batch_indices, positions, indptr, seq_lens)
    nnz = batch_indices.numel()
    tokens = torch.arange(nnz, device=indptr.device)
    places = torch.where(batch_indices < 0, nnz, tokens)
    # One more element takes what is written for padding.
    return {name: torch.empty_like(F.pad(out, (0, 1))).scatter_(0, places, out)[:nnz] for name, out in answer.items()}


@functools.lru_cache(maxsize=4)
def _cached_answer(indptr: torch.Tensor, seq_lens: torch.Tensor, nnz: int) -> Answer:
    requests = torch.empty(nnz, dtype=torch.int32, device=indptr.device)
    return batch_indices_positions(requests, torch.empty_like(requests), indptr, seq_lens)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F10: a cache keyed by the tensors themselves; fla #1212")
def cached_answer(batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor) -> Answer:
    """Hands out what the first layer computed to all others, and to every replay too."""
    cached = _cached_answer(indptr, seq_lens, batch_indices.numel())
    batch_indices.copy_(cached["batch_indices"])
    positions.copy_(cached["positions"])
    return {"batch_indices": batch_indices, "positions": positions}


_plan: dict[str, torch.Tensor] = {}


def _prepare_plan(
    mode: Mode, batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor
) -> None:
    _plan["seq_lens"] = seq_lens.clone()


def rebinds_plan(
    prepared: None, batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor
) -> Answer:
    """Every plan puts another tensor in the place of the lengths, while the graph reads the one of its capture."""
    return batch_indices_positions(batch_indices, positions, indptr, _plan["seq_lens"])


TARGET.variant(Verdict.DANGLING_BUFFER, source="fault class F3: https://github.com/sgl-project/sglang/pull/26019")(
    TwoPart(_prepare_plan, rebinds_plan)
)


@TARGET.variant(
    Verdict.REFERENCE_MISMATCH, source="the path for uniform appends, taken for any batch: right for a batch of one"
)
def uniform_appends(
    batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor
) -> Answer:
    """Shares the appended tokens out evenly among the requests."""
    batch = seq_lens.numel()
    step = torch.div(indptr[-1:] - indptr[:1], max(batch, 1), rounding_mode="floor")
    even = indptr[:1] + step * torch.arange(batch + 1, dtype=indptr.dtype, device=indptr.device)
    return batch_indices_positions(batch_indices, positions, torch.cat([even[:-1], indptr[-1:]]), seq_lens)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(batch_indices: torch.Tensor, positions: torch.Tensor, indptr: torch.Tensor, seq_lens: torch.Tensor) -> Answer:
    """Reads the base storage of the lengths as if the view were contiguous."""
    plain = torch.as_strided(seq_lens, seq_lens.shape, (1,), 0)
    return batch_indices_positions(batch_indices, positions, indptr, plain)
