"""`slot_mapping(...)`: in which KV cache slot each token of the step is written, with decode context parallel.

A request's positions are cut into virtual blocks of `block_size * world` tokens, of which every rank keeps one real block:
runs of `interleave` tokens go to the ranks in turn. A token of another rank gets -1, as does a padded one. The op is vLLM's
`compute_slot_mapping` (`v1/worker/block_table.py`, `v1/worker/gpu/block_table.py`, `v1/worker/gpu/cp_utils.py`).

- `slot`: `[bucket + spare]`, int64, on the device, persistent: as large as the largest bucket. Every element is written.
- `query_start_loc`: `[requests + 1]`, int32 or int64, on the device: where each request's tokens begin. Starts at 0.
- `positions`: `[bucket]`, int64, on the device. Stale, and no legal position, for padded tokens: must not be looked up.
- `block_table`: `[rows, columns]`, int32, on the device, rows >= requests, may be strided. Block numbers reach 2^31.
- `request_rows`: `[requests]`, int32, on the device: the table's row of each request, -1 for a dummy that only fills the batch.
- `block_size`, `world`, `rank`, `interleave` (host): `interleave` divides `block_size`.
- padded requests, by the engine's rule: `repeat_total` gives them no tokens, and the tokens behind the last request's are
  padding (vLLM V1); `dummy_rows` gives them tokens, and the row -1 (vLLM V2).
- returns `slot`: -1 for padding, for dummies, for other ranks' tokens and behind the bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis.strategies import SearchStrategy

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, FixedAxis, IntAxis, RowsAxis, StepAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.generate import cases_of
from capfuzz.targets.model import Target

_STALE_POSITION = 2**40  # what padded tokens hold: far outside every table
_STALE_SLOT = 5  # what the buffer holds: a slot that somebody else owns


def slot_mapping(
    slot: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    request_rows: torch.Tensor,
    block_size: int,
    world: int,
    rank: int,
    interleave: int,
) -> torch.Tensor:
    bucket = positions.numel()
    row = _rows_of_tokens(query_start_loc, request_rows, bucket)
    other = row < 0  # whatever this rank does not write
    local = positions
    if world > 1:  # count this rank's own tokens: all its runs so far, and what it has of this one
        turn = positions - rank * interleave
        inside = turn % (world * interleave)
        other |= inside >= interleave
        local = torch.add(inside, turn // (world * interleave), alpha=interleave)
    local = local.masked_fill(other, 0)
    block = block_table[row, local // block_size]  # -1 reads the last row, for nothing
    slots = torch.add(local % block_size, block, alpha=block_size)  # in int64: it promotes before it multiplies
    slot[:bucket].copy_(slots.masked_fill(other, -1))
    slot[bucket:].fill_(-1)
    return slot


def _rows_of_tokens(query_start_loc: torch.Tensor, request_rows: torch.Tensor, bucket: int) -> torch.Tensor:
    """The table's row of each token; the tokens behind the last request's get -1, as a dummy's do."""
    tokens = torch.arange(bucket, dtype=query_start_loc.dtype, device=query_start_loc.device)
    rows = F.pad(request_rows, (0, 1), value=-1)
    return rows.index_select(0, torch.searchsorted(query_start_loc[1:], tokens, right=True))


def reference(
    slot: np.ndarray,
    query_start_loc: np.ndarray,
    positions: np.ndarray,
    block_table: np.ndarray,
    request_rows: np.ndarray,
    block_size: int,
    world: int,
    rank: int,
    interleave: int,
) -> np.ndarray:
    """Lays out one virtual block: whose each offset is, and how many of this rank's come before it."""
    owner = np.repeat(np.arange(block_size * world // interleave) % world, interleave)
    before = np.cumsum(owner == rank) - 1
    rows = np.repeat(request_rows, np.diff(query_start_loc))
    tokens = np.flatnonzero(rows >= 0)
    blocks, offsets = np.divmod(positions[tokens], block_size * world)
    mine = owner[offsets] == rank
    out = np.full_like(slot, -1)
    out[tokens[mine]] = block_table[rows[tokens], blocks][mine].astype(np.int64) * block_size + before[offsets[mine]]
    return out


FIXED: tuple[FixedAxis, ...] = (
    ChoiceAxis("dtype", ("int32", "int64")),
    ChoiceAxis("layout", tuple(LAYOUTS)),
    ChoiceAxis("padding", ("repeat_total", "dummy_rows")),
    ChoiceAxis("blocks", ("low", "high")),
    IntAxis("block_size", simplest=1, most=4096, common=(1, 2, 4, 16)),
    IntAxis("world", simplest=1, most=16, common=(1, 2, 3)),
    IntAxis("rank", simplest=0, most=15, common=(0, 1, 2)),
    IntAxis("interleave", simplest=1, most=4096, common=(1, 2, 4)),
    IntAxis("padded_tokens", simplest=0, most=64, common=(0, 1, 5)),
    IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
)
STEPPED: tuple[StepAxis, ...] = (
    RowsAxis("query", most=16, total=2048),
    RowsAxis("context", most=48, total=4096),
    StepIntAxis("live", up_to_batch=True),
)


def build(case: Case) -> Sequence[Feed]:
    values = {name: value for name, value in case.values.items() if isinstance(value, int)}
    dummies = case.values["padding"] == "dummy_rows"
    if values["rank"] >= values["world"]:
        raise InvalidCaseError("case.values.rank", f"must be below the world size {values['world']}, is {values['rank']}")
    if values["block_size"] % values["interleave"]:
        raise InvalidCaseError("case.values.interleave", f"must divide the block size {values['block_size']}")
    queries: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    for step in case.steps:
        query, live = np.array(step["query"], np.int64), step["live"]
        assert isinstance(live, int)
        if not dummies:
            query[live:] = 0
        begin = np.cumsum(query) - query
        position = np.arange(query.sum()) + np.repeat(np.array(step["context"], np.int64) - begin, query)
        position[query[:live].sum() :] = _STALE_POSITION
        queries.append(query)
        positions.append(position)
    bucket = max(position.size for position in positions) + values["padded_tokens"]
    longest = max((int(position[position < _STALE_POSITION].max(initial=0)) for position in positions), default=0)
    shape = (queries[0].size + 1, longest // (values["block_size"] * values["world"]) + 1)
    first = 0 if case.values["blocks"] == "low" else 2**31 - 1 - shape[0] * shape[1] - len(case.steps)
    feeds: list[Feed] = []
    for index, (step, query, position) in enumerate(zip(case.steps, queries, positions, strict=True)):
        # Not in the order of the requests; the first one has block 0, which is a block like any other.
        rows = -np.arange(query.size, dtype=np.int32) % np.int32(shape[0])
        if dummies:
            rows[step["live"] :] = -1
        feeds.append(
            {
                "slot": Argument(np.full(bucket + values["spare"], _STALE_SLOT, np.int64)),
                "query_start_loc": Argument(np.cumsum([0, *query], dtype=str(case.values["dtype"]))),
                "positions": Argument(np.pad(position, (0, bucket - position.size), constant_values=_STALE_POSITION)),
                "block_table": Argument(
                    np.arange(first + index, first + index + shape[0] * shape[1], dtype=np.int32).reshape(shape),
                    LAYOUTS[str(case.values["layout"])],
                ),
                "request_rows": Argument(rows),
                **{name: values[name] for name in ("block_size", "world", "rank", "interleave")},
            }
        )
    return feeds


def strategy() -> SearchStrategy[Case]:
    """The axes' own way, with a rank that the world has, an interleave that divides the block, and two changes at most: more
    tokens, then fewer, is all that a slot buffer can see."""

    def legal(case: Case) -> Case:
        values = {name: value for name, value in case.values.items() if isinstance(value, int)}
        interleave = math.gcd(values["interleave"], values["block_size"])
        case = case.with_value("rank", values["rank"] % values["world"]).with_value("interleave", interleave)
        return case.with_steps(case.steps[:3])

    return cases_of(FIXED, STEPPED).map(legal)


TARGET = Target(
    name="slot_mapping",
    summary="the KV cache slot of each token, -1 for padding and for other ranks' tokens (vLLM)",
    implementation=slot_mapping,
    reference=reference,
    fixed=FIXED,
    stepped=STEPPED,
    draw=strategy,
    build=build,
)


def _live_tokens(call: LawCall) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which tokens are no padding, and the table's row and the position of each."""
    rows = np.repeat(call.inputs["request_rows"], np.diff(call.inputs["query_start_loc"]))
    live = np.flatnonzero(rows >= 0)
    return live, rows[live], call.inputs["positions"][live]


@TARGET.law
def every_token_has_one_owner(call: LawCall) -> str | None:
    """Over all ranks each live token is written exactly once. Asked from the first rank only: it is the same question."""
    world, live = call.inputs["world"], _live_tokens(call)[0]
    if call.inputs["rank"] > 0:
        return None
    owners = (call.outputs[live] != -1).astype(np.int64)
    for rank in range(1, world):
        owners += call.answer({**call.inputs, "rank": rank})[live] != -1
    return None if (owners == 1).all() else f"the tokens have {owners.tolist()} owners among {world} ranks"


@TARGET.law
def slots_lie_in_the_requests_blocks(call: LawCall) -> str | None:
    """A token's slot lies in the block that its request's table names, and no two tokens share one."""
    inputs, (live, rows, positions) = call.inputs, _live_tokens(call)
    slots, block_size = call.outputs[live], inputs["block_size"]
    owned = slots != -1
    blocks = inputs["block_table"][rows, positions // (block_size * inputs["world"])]
    if not np.array_equal(slots[owned] // block_size, blocks[owned]):
        return f"slots {slots[owned].tolist()} are not in the blocks {blocks[owned].tolist()} of {block_size}"
    if np.unique(slots[owned]).size != int(owned.sum()):
        return f"two tokens share a slot: {slots[owned].tolist()}"
    return None


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The live tokens of a padded batch get the slots of the batch alone, the others none."""
    inputs, live = call.inputs, _live_tokens(call)[0]
    if live.size == call.outputs.size:
        return None
    real = int((inputs["request_rows"] >= 0).sum())  # padded requests come last
    alone = call.answer(
        {
            **inputs,
            "slot": np.full(live.size, _STALE_SLOT),
            "query_start_loc": inputs["query_start_loc"][: real + 1].copy(),
            "positions": inputs["positions"][live].copy(),
            "request_rows": inputs["request_rows"][:real].copy(),
        }
    )
    if not np.array_equal(call.outputs[: live.size], alone):
        return f"live slots are {call.outputs[: live.size].tolist()}, without padding {alone.tolist()}"
    tail = call.outputs[live.size :]
    return None if (tail == -1).all() else f"padding has slots: {tail.tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(query_start_loc: torch.Tensor, **given: Any) -> torch.Tensor:
    """Makes sure of the first offset with a scalar."""
    query_start_loc[0] = 0
    return slot_mapping(query_start_loc=query_start_loc, **given)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: a device count read by the host; ROCm/aiter #4375")
def pads_by_slice(slot: torch.Tensor, query_start_loc: torch.Tensor, **given: Any) -> torch.Tensor:
    """Clears the padded tokens with a slice from the device's own count."""
    slot_mapping(slot, query_start_loc, **given)
    slot[query_start_loc[-1] :].fill_(-1)
    return slot


_counts: dict[int, int] = {}


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F2: vLLM V1 pads from a host count of tokens")
def pads_from_host_count(slot: torch.Tensor, query_start_loc: torch.Tensor, **given: Any) -> torch.Tensor:
    """Clears from the number of tokens that the host last saw: right until a larger batch is replayed."""
    slot_mapping(slot, query_start_loc, **given)
    if not torch.cuda.is_current_stream_capturing():
        _counts[slot.numel()] = int(query_start_loc[-1])
    slot[_counts[slot.numel()] :].fill_(-1)
    return slot


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: a stale tail; vLLM #37728")
def leaves_tail(slot: torch.Tensor, **given: Any) -> torch.Tensor:
    """Writes the live tokens only: behind them lie the slots of an earlier step."""
    row = _rows_of_tokens(given["query_start_loc"], given["request_rows"], slot.numel())
    kept = slot.clone()
    slot_mapping(slot, **given)
    slot.copy_(torch.where(row < 0, kept, slot))
    return slot


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: slot 0 of the null block for padding; vLLM #39444")
def null_slot(slot: torch.Tensor, **given: Any) -> torch.Tensor:
    """Sends padded tokens to slot 0, where they are written over each other."""
    slot_mapping(slot, **given)
    row = _rows_of_tokens(given["query_start_loc"], given["request_rows"], slot.numel())
    return slot.masked_fill_(row < 0, 0)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: -1 used as an index; vLLM #43810")
def sentinel_as_index(slot: torch.Tensor, request_rows: torch.Tensor, **given: Any) -> torch.Tensor:
    """Looks row -1 up, which is the last row of the table, and gives padding the first slot of another request."""
    slot_mapping(slot, request_rows=request_rows, **given)
    row = _rows_of_tokens(given["query_start_loc"], request_rows, slot.numel())
    wrong = given["block_table"][row, 0].to(torch.int64) * given["block_size"]
    slot.copy_(torch.where(row < 0, wrong, slot))
    return slot


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F9: block number times block size in int32; vLLM #50427")
def narrows(slot: torch.Tensor, **given: Any) -> torch.Tensor:
    """Computes slots in int32, which wraps from slot 2^31 on."""
    slots = slot_mapping(slot, **given)
    return slots.copy_(slots.to(torch.int32))


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed; vLLM #42135")
def stride_blind(block_table: torch.Tensor, **given: Any) -> torch.Tensor:
    """Reads the table from its base storage, as a kernel does that is given only a pointer and the number of columns."""
    flat = torch.as_strided(block_table, block_table.shape, (block_table.shape[1], 1), 0)
    return slot_mapping(block_table=flat, **given)


@TARGET.variant(
    Verdict.REFERENCE_MISMATCH, source="rows of the batch taken for rows of the table: vLLM V1's rule under V2's table"
)
def batch_order(request_rows: torch.Tensor, **given: Any) -> torch.Tensor:
    """Takes the table's rows in the order of the batch."""
    in_order = torch.arange(request_rows.numel(), dtype=torch.int32, device=request_rows.device)
    return slot_mapping(request_rows=torch.where(request_rows < 0, request_rows, in_order), **given)


@TARGET.variant(
    Verdict.REFERENCE_MISMATCH, source="a search for the last offset below the token instead of the last at or below it"
)
def left_search(query_start_loc: torch.Tensor, positions: torch.Tensor, **given: Any) -> torch.Tensor:
    """Counts the first token of a request to the one before: right for a batch of one."""
    late = query_start_loc.clone()
    late[1:-1] += 1
    bounds = torch.minimum(late, query_start_loc[-1:])
    # A dummy's token may be counted to a live request, and is looked up then.
    positions = positions.masked_fill(positions >= _STALE_POSITION, 0)
    return slot_mapping(query_start_loc=bounds, positions=positions, **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the form before cp_kv_cache_interleave_size: runs of one token")
def runs_of_one(interleave: int, **given: Any) -> torch.Tensor:
    """Deals token by token, whatever the interleave: every token still has one owner."""
    return slot_mapping(interleave=1, **given)


@TARGET.variant(Verdict.EAGER_ERROR, "AcceleratorError", "fault class F16: dummy positions overrun the table; vLLM #53658")
def looks_up_padding(positions: torch.Tensor, block_table: torch.Tensor, **given: Any) -> torch.Tensor:
    """Looks every position up and masks the answer afterwards."""
    slots = slot_mapping(positions=positions, block_table=block_table, **given)
    block_table[0, positions // (given["block_size"] * given["world"])]
    return slots
