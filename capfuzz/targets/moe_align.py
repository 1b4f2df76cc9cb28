"""`moe_align(op, topk_ids, weights, expert_map, num_local_tokens, block_size)`: tokens sorted into blocks by their experts.

What every kind of expert layer begins with, recorded in the graph. `op` (host) says in which form the answer comes:

- `count`: `count_expert_num_tokens` and the aligned starts of DeepGEMM's layout (vLLM): `expert_counts` and `expert_starts`, by
  local expert.
- `align`: `moe_align_block_size`. `sorted_ids` are pair numbers, padded with the number of pairs; `expert_ids` is the local
  expert of each block, and 0 for the blocks behind the last one, as vLLM's kernel fills them in.
- `align_minus_one`: the same with -1 for those blocks (other forks of the kernel).
- `sort`: aiter's `moe_sorting`. `sorted_ids` are `slot << 24 | token`, padded with `topk << 24 | tokens`; the blocks behind the
  last one have -1; `sorted_weights` are sorted along, and padded with 0.

The arguments:

- `topk_ids`: `[tokens, topk]`, int32 or int64, on the device; -1 is a slot that is not routed. Rows from `num_local_tokens` on
  are padding, and hold ids of an earlier batch.
- `weights`: `[tokens, topk]` float32, on the device; None where they are not sorted along.
- `expert_map`: `[experts]` int32, on the device: the local number of an expert (dense, in order), -1 where another rank has it.
  It is rewritten in place when experts are moved.
- `num_local_tokens`: `[1]` int32 on the device: how many rows are real. It changes from replay to replay.
- `block_size` (host): every expert's pairs are padded to whole blocks, and `expert_starts` are aligned to it.

Each form also returns `num_tokens` (what `num_local_tokens` was), the blocked ones `num_tokens_post_pad`. Nothing is
persistent; outputs have the size of the worst case, and every element is written. Within an expert pairs keep their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.model import Target

Tensors = dict[str, torch.Tensor]
_SLOT_SHIFT = 24  # aiter packs the slot above the token


def moe_align(
    op: str,
    topk_ids: torch.Tensor,
    weights: torch.Tensor | None,
    expert_map: torch.Tensor,
    num_local_tokens: torch.Tensor,
    block_size: int,
) -> Tensors:
    (tokens, topk), experts, device = topk_ids.shape, expert_map.numel(), topk_ids.device
    pairs = torch.arange(tokens * topk, device=device)
    # The local expert of each pair, -1 where there is none. An id of -1 must not index the map.
    flat = topk_ids.flatten()
    dropped = (pairs >= num_local_tokens * topk) | (flat < 0)
    local = expert_map.index_select(0, flat.clamp(min=0))
    local.masked_fill_(dropped, -1)
    in_order, order = torch.sort(local, stable=True)
    bounds = torch.bucketize(torch.arange(experts + 1, device=device), in_order, out_int32=True)
    counts = torch.diff(bounds)
    padded = counts + -counts % block_size
    ends = torch.cumsum(padded, 0, dtype=torch.int32)
    starts = ends - padded
    out = {"num_tokens": num_local_tokens}
    if op == "count":
        return {**out, "expert_counts": counts, "expert_starts": starts}

    size, total = capacity(op, tokens, topk, experts, block_size), ends[-1:]
    # Where each pair goes; what has no expert goes to one cell behind the end.
    place = (starts - bounds[:-1])[in_order] + pairs
    place.masked_fill_(in_order < 0, size)
    blocks = torch.arange(0, size, block_size, device=device)
    owners = torch.bucketize(blocks, ends, right=True, out_int32=True)
    owners.masked_fill_(blocks >= total, 0 if op == "align" else -1)
    out |= {"num_tokens_post_pad": total, "expert_ids": owners}
    if op != "sort":
        return {**out, "sorted_ids": scattered(order.int(), place, size, tokens * topk)}
    assert weights is not None
    packed = (order % topk << _SLOT_SHIFT) + order // topk
    out["sorted_weights"] = scattered(weights.flatten().index_select(0, order), place, size, 0)
    return {**out, "sorted_ids": scattered(packed.int(), place, size, topk << _SLOT_SHIFT | tokens)}


def capacity(op: str, tokens: int, topk: int, experts: int, block_size: int) -> int:
    """Room for the worst case, by the engine's own formula."""
    pairs = tokens * topk
    if op == "sort":
        return max(0, pairs + experts * block_size - topk)
    worst = pairs + experts * (block_size - 1)
    return min(worst, pairs * block_size) if pairs < experts else worst


def scattered(values: torch.Tensor, place: torch.Tensor, size: int, pad: int) -> torch.Tensor:
    out = torch.full((size + 1,), pad, dtype=values.dtype, device=values.device)
    return out.scatter_(0, place, values)[:size]


def reference(
    op: str,
    topk_ids: np.ndarray,
    weights: np.ndarray | None,
    expert_map: np.ndarray,
    num_local_tokens: np.ndarray,
    block_size: int,
) -> dict[str, np.ndarray]:
    """Deals the pairs to their experts one by one, then lays the experts out block by block."""
    (tokens, topk), experts, local = topk_ids.shape, len(expert_map), expert_map.tolist()
    hands: list[list[int]] = [[] for _ in range(experts)]
    for pair, expert in enumerate(topk_ids[: int(num_local_tokens[0])].ravel().tolist()):
        if expert >= 0 and local[expert] >= 0:
            hands[local[expert]].append(pair)
    blocks_of = [-(-len(hand) // block_size) for hand in hands]
    *starts, end = itertools.accumulate((blocks * block_size for blocks in blocks_of), initial=0)
    out = {"num_tokens": num_local_tokens}
    if op == "count":
        counts = np.array([len(hand) for hand in hands], np.int32)
        return {**out, "expert_counts": counts, "expert_starts": np.array(starts, np.int32)}

    size = capacity(op, tokens, topk, experts, block_size)
    ids = np.full(size, tokens * topk if op != "sort" else topk << _SLOT_SHIFT | tokens, np.int32)
    sorted_weights = np.zeros(size, np.float32)
    owners = np.full(-(-size // block_size), 0 if op == "align" else -1, np.int32)
    for expert, (hand, start) in enumerate(zip(hands, starts, strict=True)):
        owners[start // block_size : start // block_size + blocks_of[expert]] = expert
        for at, pair in enumerate(hand, start):
            token, slot = divmod(pair, topk)
            ids[at] = slot << _SLOT_SHIFT | token if op == "sort" else pair
            if weights is not None:
                sorted_weights[at] = weights[token, slot]
    out |= {"num_tokens_post_pad": np.array([end], np.int32), "sorted_ids": ids, "expert_ids": owners}
    return {**out, "sorted_weights": sorted_weights} if op == "sort" else out


def build(case: Case) -> Sequence[Feed]:
    topk, experts, ranks = (case.values[name] for name in ("topk", "experts", "ranks"))
    dtype, layout = str(case.values["dtype"]), LAYOUTS[str(case.values["layout"])]
    assert isinstance(topk, int) and isinstance(experts, int) and isinstance(ranks, int)
    if topk > experts:
        raise InvalidCaseError("case.values.topk", f"must be at most the number of experts, {experts}")
    feeds: list[Feed] = []
    for step in case.steps:
        routes, live, moved = step["routes"], step["live"], step["moved"]
        assert isinstance(routes, list) and isinstance(live, int) and isinstance(moved, int)
        route = np.array(routes, dtype).reshape(-1, 1)
        ids = (route + np.arange(topk, dtype=dtype)) % (experts + 1) - 1  # experts that follow each other; one may be -1
        ids[live:] = np.arange(topk)  # stale, and plausible
        weights = (route + 1 + np.arange(topk) / 8).astype(np.float32)
        is_local = (np.arange(experts) + moved) % ranks == 0
        feeds.append(
            {
                "op": str(case.values["op"]),
                "topk_ids": Argument(ids, layout),
                "weights": Argument(weights) if case.values["op"] == "sort" else None,
                "expert_map": Argument(np.where(is_local, np.cumsum(is_local) - 1, -1).astype(np.int32)),
                "num_local_tokens": Argument(np.array([live], np.int32)),
                "block_size": case.values["block_size"],
            }
        )
    return feeds


TARGET = Target(
    name="moe_align",
    summary="tokens sorted into blocks by expert (moe_align_block_size, aiter's moe_sorting, count_expert_num_tokens)",
    implementation=moe_align,
    reference=reference,
    fixed=(
        ChoiceAxis("op", ("count", "align", "align_minus_one", "sort")),
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        IntAxis("topk", simplest=1, most=8, common=(1, 2, 4)),
        IntAxis("experts", simplest=1, most=512, common=(4, 8, 5, 60)),
        IntAxis("ranks", simplest=1, most=8, common=(1, 2, 3)),  # of expert parallelism
        IntAxis("block_size", simplest=1, most=256, common=(1, 4, 16)),
    ),
    stepped=(
        RowsAxis("routes", most=1023),  # the first expert of a token is (route - 1) % (experts + 1), with -1 for route 0
        StepIntAxis("live", up_to_batch=True),
        StepIntAxis("moved", common=(1, 2, 5)),  # by how many places the experts were moved
    ),
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """What is counted, and what the blocks hold, is the live tokens alone."""
    live, ids = int(call.inputs["num_local_tokens"][0]), call.inputs["topk_ids"]
    experts = _experts(call)[: live * ids.shape[1]]
    if call.inputs["op"] == "count":
        counts = np.bincount(experts[experts >= 0], minlength=len(call.inputs["expert_map"])).tolist()
        got = call.outputs["expert_counts"].tolist()
        return None if got == counts else f"counts are {got}, of the live tokens {counts}"
    pairs = _pairs(call)
    held = np.sort(pairs[pairs >= 0])
    return None if np.array_equal(held, np.flatnonzero(experts >= 0)) else f"the blocks hold pairs {held.tolist()}"


@TARGET.law
def each_block_has_one_expert(call: LawCall) -> str | None:
    """Blocks are whole, and each pair is in a block of its own expert."""
    if call.inputs["op"] == "count":
        return None
    block, pairs = call.inputs["block_size"], _pairs(call)
    if len(pairs) % block:
        return f"{len(pairs)} pairs are no whole blocks of {block}"
    owners = np.repeat(call.outputs["expert_ids"][: len(pairs) // block], block)
    wrong = pairs[(pairs >= 0) & (_experts(call)[pairs] != owners)] if len(pairs) else pairs
    return f"pairs {wrong.tolist()} are in blocks of another expert" if len(wrong) else None


def _experts(call: LawCall) -> np.ndarray:
    """The local expert of each pair of the bucket."""
    ids = call.inputs["topk_ids"].ravel()
    experts: np.ndarray = np.where(ids < 0, -1, call.inputs["expert_map"][ids])
    return experts


def _pairs(call: LawCall) -> np.ndarray:
    """The pair numbers in the blocks, -1 for what is padded."""
    tokens, topk = call.inputs["topk_ids"].shape
    ids, pad = call.outputs["sorted_ids"].astype(np.int64), tokens * topk
    if call.inputs["op"] == "sort":
        ids, pad = (ids & ((1 << _SLOT_SHIFT) - 1)) * topk + (ids >> _SLOT_SHIFT), pad + topk
    pairs: np.ndarray = np.where(ids == pad, -1, ids)[: int(call.outputs["num_tokens_post_pad"][0])]
    return pairs


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1: a scalar is copied to the device")
def scalar_store(**inputs: Any) -> Tensors:
    """Stores the first expert's start as a scalar."""
    out = moe_align(**inputs)
    if "expert_starts" in out:
        out["expert_starts"][0] = 0
    return out


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/ROCm/aiter/issues/4375")
def reads_token_count(topk_ids: torch.Tensor, num_local_tokens: torch.Tensor, **others: Any) -> Tensors:
    """The host reads `num_local_tokens` to drop the padded rows."""
    masked = topk_ids.clone()
    masked[num_local_tokens.item() :] = -1
    return moe_align(topk_ids=masked, num_local_tokens=num_local_tokens, **others)


_counts: dict[int, int] = {}


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "https://github.com/ROCm/aiter/issues/4375")
def token_count_from_warm_up(topk_ids: torch.Tensor, num_local_tokens: torch.Tensor, **others: Any) -> Tensors:
    """Passes the count as a host integer: it is read while warming up, and baked at capture."""
    if not torch.cuda.is_current_stream_capturing():
        _counts[len(topk_ids)] = int(num_local_tokens)
    baked = torch.full_like(num_local_tokens, _counts[len(topk_ids)])
    return moe_align(topk_ids=topk_ids, num_local_tokens=baked, **others)


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "https://github.com/ROCm/aiter/issues/2447")
def unwritten_tail(block_size: int, **others: Any) -> Tensors:
    """Writes the experts of the blocks that are used; the rest of `torch.empty` stays as it is."""
    out = moe_align(block_size=block_size, **others)
    if "expert_ids" in out:
        kept = torch.empty_like(out["expert_ids"])
        out["expert_ids"] = torch.where(_is_used(out, block_size), out["expert_ids"], kept)
    return out


def _is_used(out: Tensors, block_size: int) -> torch.Tensor:
    blocks = torch.arange(out["expert_ids"].numel(), device=out["expert_ids"].device)
    return blocks * block_size < out["num_tokens_post_pad"]


_workspaces: dict[int, torch.Tensor] = {}


@TARGET.variant(Verdict.DIVERGENCE, "not_idempotent", "https://github.com/sgl-project/sglang/issues/15306")
def accumulating_counts(expert_map: torch.Tensor, **others: Any) -> Tensors:
    """Counts into a workspace that only the eager path clears."""
    out = moe_align(expert_map=expert_map, **others)
    if "expert_counts" in out:
        if not torch.cuda.is_current_stream_capturing():
            _workspaces.clear()
            _workspaces[expert_map.numel()] = torch.zeros_like(out["expert_counts"])
        out["expert_counts"] = _workspaces[expert_map.numel()].add_(out["expert_counts"])
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: padded rows are routed; SGLang #24361")
def counts_padding(topk_ids: torch.Tensor, num_local_tokens: torch.Tensor, **others: Any) -> Tensors:
    """Routes every row of the bucket, whatever an earlier batch left in it."""
    whole = torch.full_like(num_local_tokens, len(topk_ids))
    return {**moe_align(topk_ids=topk_ids, num_local_tokens=whole, **others), "num_tokens": num_local_tokens}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: -1 as an index; vLLM #43810")
def id_wraps(topk_ids: torch.Tensor, expert_map: torch.Tensor, **others: Any) -> Tensors:
    """Counts a slot that is not routed for the last expert: -1 indexes the map from its end."""
    wrapped = torch.where(topk_ids < 0, topk_ids + expert_map.numel(), topk_ids)
    return moe_align(topk_ids=wrapped, expert_map=expert_map, **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: the tail is looked up too; vLLM #37682")
def maps_tail(expert_map: torch.Tensor, block_size: int, **others: Any) -> Tensors:
    """Looks up the blocks behind the last one in the map: expert 0 may be elsewhere, and -1 is the last expert."""
    out = moe_align(expert_map=expert_map, block_size=block_size, **others)
    if "expert_ids" in out:
        owners = out["expert_ids"]
        out["expert_ids"] = torch.where(_is_used(out, block_size), owners, expert_map[owners])
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(topk_ids: torch.Tensor, expert_map: torch.Tensor, **others: Any) -> Tensors:
    """Reads the ids as a kernel does that is given a pointer, and skips what is no expert."""
    dense = torch.as_strided(topk_ids, topk_ids.shape, (topk_ids.shape[1], 1), 0)
    return moe_align(topk_ids=dense.where(dense < expert_map.numel(), -1), expert_map=expert_map, **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="an inclusive scan where an exclusive one is due")
def inclusive_starts(block_size: int, **others: Any) -> Tensors:
    """Gives where each expert's blocks end for where they start."""
    out = moe_align(block_size=block_size, **others)
    if "expert_starts" in out:
        out["expert_starts"] += out["expert_counts"] + -out["expert_counts"] % block_size
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="aiter packs 24 bits of token; a 16-bit form is short of them")
def narrow_slots(topk_ids: torch.Tensor, **others: Any) -> Tensors:
    """Packs the token into 8 bits, so that token 256 is token 0 of the next slot."""
    out = moe_align(topk_ids=topk_ids, **others)
    if "sorted_weights" in out:
        token, slot = out["sorted_ids"] & ((1 << _SLOT_SHIFT) - 1), out["sorted_ids"] >> _SLOT_SHIFT
        packed = (slot << 8) + token
        out["sorted_ids"] = (packed >> 8 << _SLOT_SHIFT) + (packed & 255)
    return out
