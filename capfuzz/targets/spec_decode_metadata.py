"""`spec_decode_metadata(op, ...)`: which logits a step of speculative decoding samples from, and what it accepted.

Three ops of vLLM's speculative decoding, chosen by the host string `op`; each has its own arguments and returns a dict. A step
has `batch` rows (the bucket), `live` of them real; `k` is the most draft tokens that a request may have. Integer tensors are
int32 or int64, on the device, and may be strided views, unless another thing is said. Nothing is read back by the host.

`calc` (`calc_spec_decode_metadata`, `v1/worker/gpu_model_runner.py`): each live request samples behind each of its draft tokens
and once more (the bonus), from the last `draft + 1` tokens that it has scheduled.
- `draft` `[batch]`: draft tokens of each request; rows from `live` on hold what the last batch left.
- `draft_cpu` `[batch]`, pinned host memory: the host's copy, padded rows 0. It is for the host's own use: a graph that reads it
  anywhere but at its own address keeps what it held at capture.
- `cu_scheduled` `[batch]`: where each request's scheduled tokens end (inclusive: no leading 0); flat from `live` on.
- `live`: int32 `[]`; changes from replay to replay.
- `logits_indices` `[batch * (k + 1)]`, int32, persistent: every element is written.
- `tail` (host): what slots without a token get: `last` repeats the last slot (-1 where there is none), as vLLM fills
  `kv_sharing_fast_prefill_logits_indices`; `null` is -1. The two running sums repeat the total either way.
- returns, all int32, `cu_num_draft` and `cu_num_sampled` `[batch]` (inclusive: no leading 0), `logits_indices` (the buffer),
  `target_logits_indices` `[batch * k]` and `bonus_logits_indices` `[batch]`, both of them positions in `logits_indices`.

`prepare` (`eagle_prepare_inputs_padded`, `v1/spec_decode/utils.py`): the token that the drafter goes on from.
- `cu_draft` `[batch]` (inclusive, flat from `live` on), `valid` `[batch]` (accepted tokens, the bonus included; 0 for a
  discarded request; padded rows stale), `query_start_loc` `[batch + 1]`: where each request's scheduled tokens begin, and
  where the last ones end (flat from `live` on).
- returns `token_indices` and `rejected` `[batch]`: `rejected` is 0 without draft tokens, whatever `valid` says. Rejected tokens
  stay in the batch, so that shapes are static. With `valid` 0 the index lies one before the request's first token.

`next_token` (`eagle_prepare_next_token_padded`, same file): the last token that was accepted.
- `sampled` `[batch, k + 1]`: token ids, -1 where a draft token was rejected; ids from `vocab` (host) on are no tokens.
- `discard` bool `[batch]`: the request counts as if it had sampled nothing (padded rows too); `backup` `[batch]`: its token
  then.
- returns `next_token` `[batch]` and `valid` int32 `[batch]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis.strategies import SearchStrategy

from capfuzz.devices.layout import LAYOUTS, Argument, Layout, Space
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError, StepValue
from capfuzz.targets.generate import cases_of
from capfuzz.targets.model import Target

_VOCAB = 1000
_STALE = 3  # what padded rows hold: a count that a careless scan would count
_OLD_INDEX = 77  # what the persistent buffer holds
# What a row of `kind` is like in `next_token`: plain, discarded, or with one entry that is no token.
_PLAIN, _DISCARDED, _AT_VOCAB, _FAR_BEYOND, _HOLE = range(5)

Tensors = dict[str, torch.Tensor]


def spec_decode_metadata(op: str, **arguments: Any) -> Tensors:
    if op == "calc":
        return calc(**arguments)
    if op == "prepare":
        return prepare(**arguments)
    return next_token(**arguments)


def calc(
    draft: torch.Tensor,
    draft_cpu: torch.Tensor,
    cu_scheduled: torch.Tensor,
    live: torch.Tensor,
    logits_indices: torch.Tensor,
    k: int,
    tail: str,
) -> Tensors:
    is_live = torch.arange(draft.numel(), device=draft.device) < live
    drafts = draft * is_live
    cu_draft = torch.cumsum(drafts, 0, dtype=torch.int32)
    cu_sampled = torch.cumsum(drafts + is_live, 0, dtype=torch.int32)
    drafted, sampled = cu_draft[-1:], cu_sampled[-1:]
    slots = torch.arange(logits_indices.numel(), dtype=torch.int32, device=draft.device)
    # a slot past the last one is the last one; with none at all it is -1, which belongs to row 0
    slot = torch.minimum(slots, sampled - 1)
    row = torch.searchsorted(cu_sampled, slot, right=True)
    logits_indices.copy_((cu_scheduled - cu_sampled).index_select(0, row) + slot)
    slots_of_drafts = slots[: draft.numel() * k]
    slot = torch.minimum(slots_of_drafts, drafted - 1)
    target = slot + torch.searchsorted(cu_draft, slot, right=True, out_int32=True)  # one bonus precedes it per earlier request
    bonus = cu_sampled - 1
    if tail == "null":
        logits_indices.masked_fill_(slots >= sampled, -1)
        target.masked_fill_(slots_of_drafts >= drafted, -1)
        bonus.masked_fill_(~is_live, -1)
    return {
        "cu_num_draft": cu_draft,
        "cu_num_sampled": cu_sampled,
        "logits_indices": logits_indices,
        "target_logits_indices": target,
        "bonus_logits_indices": bonus,
    }


def prepare(cu_draft: torch.Tensor, valid: torch.Tensor, query_start_loc: torch.Tensor) -> Tensors:
    draft = torch.diff(cu_draft, prepend=cu_draft.new_zeros(1))
    rejected = (draft + 1 - valid) * (draft > 0)
    return {"token_indices": query_start_loc[1:] - 1 - rejected, "rejected": rejected}


def next_token(sampled: torch.Tensor, discard: torch.Tensor, backup: torch.Tensor, vocab: int) -> Tensors:
    accepted = (sampled != -1) & (sampled < vocab) & ~discard[:, None]
    valid = accepted.sum(1, dtype=torch.int32)
    columns = torch.arange(sampled.shape[1], device=sampled.device)
    last = (accepted * columns).amax(1, keepdim=True)
    return {"next_token": torch.where(valid > 0, sampled.gather(1, last).squeeze(1), backup), "valid": valid}


def reference(op: str, **arguments: Any) -> dict[str, np.ndarray]:
    if op == "calc":
        return _calc(**arguments)
    return _prepare(**arguments) if op == "prepare" else _next_token(**arguments)


def _calc(
    draft: np.ndarray,
    draft_cpu: np.ndarray,
    cu_scheduled: np.ndarray,
    live: np.ndarray,
    logits_indices: np.ndarray,
    k: int,
    tail: str,
) -> dict[str, np.ndarray]:
    """Request by request, appending to lists."""
    logits: list[int] = []
    target: list[int] = []
    bonus: list[int] = []
    cu_draft: list[int] = []
    cu_sampled: list[int] = []
    for count, end in zip(draft[: int(live)].tolist(), cu_scheduled.tolist(), strict=False):
        first = len(logits)
        logits.extend(range(end - count - 1, end))
        target.extend(range(first, first + count))
        bonus.append(first + count)
        cu_draft.append(len(target))
        cu_sampled.append(len(logits))
    lists = {
        "cu_num_draft": (cu_draft, draft.size, len(target)),
        "cu_num_sampled": (cu_sampled, draft.size, len(logits)),
        "logits_indices": (logits, logits_indices.size, None),
        "target_logits_indices": (target, draft.size * k, None),
        "bonus_logits_indices": (bonus, draft.size, None),
    }
    out: dict[str, np.ndarray] = {}
    for name, (values, size, total) in lists.items():
        fill = total if total is not None else values[-1] if values and tail == "last" else -1
        out[name] = np.full(size, fill, np.int32)
        out[name][: len(values)] = values
    return out


def _prepare(cu_draft: np.ndarray, valid: np.ndarray, query_start_loc: np.ndarray) -> dict[str, np.ndarray]:
    rejected, indices, before = np.zeros_like(valid), np.zeros_like(valid), 0
    for row, total in enumerate(cu_draft.tolist()):
        count, before = total - before, total
        rejected[row] = count + 1 - valid[row] if count else 0
        indices[row] = query_start_loc[row + 1] - 1 - rejected[row]
    return {"token_indices": indices, "rejected": rejected}


def _next_token(sampled: np.ndarray, discard: np.ndarray, backup: np.ndarray, vocab: int) -> dict[str, np.ndarray]:
    tokens, valid = backup.copy(), np.zeros(len(backup), np.int32)
    for row, ids in enumerate(sampled.tolist()):
        good = [] if discard[row] else [token for token in ids if token != -1 and token < vocab]
        valid[row] = len(good)
        if good:
            tokens[row] = good[-1]
    return {"next_token": tokens, "valid": valid}


def build(case: Case) -> Sequence[Feed]:
    op, tail = str(case.values["op"]), str(case.values["tail"])
    dtype, layout = np.dtype(str(case.values["dtype"])), LAYOUTS[str(case.values["layout"])]
    k = max((max(_rows(step, "draft"), default=0) for step in case.steps), default=0)
    feeds: list[Feed] = []
    for index, step in enumerate(case.steps):
        live, draft, valid = step["live"], _rows(step, "draft"), _rows(step, "valid")
        assert isinstance(live, int)
        for row, (count, accepted) in enumerate(zip(draft, valid, strict=True)):
            if accepted > count + 1:
                raise InvalidCaseError(f"case.steps[{index}].valid[{row}]", f"must be at most draft + 1, is {accepted}")
        if op == "next_token":
            feeds.append({"op": op, **_next_token_feed(valid, _rows(step, "kind"), live, k, dtype, layout)})
            continue
        scheduled = [count + 1 + extra for count, extra in zip(draft, _rows(step, "extra"), strict=True)]
        begins = np.zeros(len(draft) + 1, dtype)
        begins[1:] = np.cumsum([*scheduled[:live], *[0] * (len(draft) - live)])
        counts = np.array([*draft[:live], *[0] * (len(draft) - live)], dtype)
        feed: dict[str, Any] = {"op": op}
        if op == "calc":
            feed["draft"] = Argument(_with_tail(draft, live, dtype), layout)
            feed["cu_scheduled"] = Argument(begins[1:])
            feed["draft_cpu"] = Argument(counts, space=Space.PINNED)
            feed["live"] = Argument(np.array(live, np.int32))
            feed["logits_indices"] = Argument(np.full(len(draft) * (k + 1), _OLD_INDEX, np.int32))
            feed |= {"k": k, "tail": tail}
        else:
            feed["cu_draft"] = Argument(np.cumsum(counts, dtype=dtype), layout)
            feed["query_start_loc"] = Argument(begins)
            feed["valid"] = Argument(_with_tail(valid, live, dtype), layout)
        feeds.append(feed)
    return feeds


def _rows(step: Mapping[str, StepValue], name: str) -> list[int]:
    rows = step[name]
    assert isinstance(rows, list)
    return rows


def _with_tail(rows: list[int], live: int, dtype: np.dtype) -> np.ndarray:
    return np.array([*rows[:live], *[_STALE] * (len(rows) - live)], dtype)


def _next_token_feed(
    valid: list[int], kinds: list[int], live: int, k: int, dtype: np.dtype, layout: Layout
) -> dict[str, Argument | int]:
    """Distinct ids; each row's first `valid` entries are tokens, but for the one entry that its kind is about."""
    sampled = 1 + np.arange(len(valid) * (k + 1), dtype=dtype).reshape(len(valid), k + 1) % (_VOCAB - 1)
    for row, (accepted, kind) in enumerate(zip(valid, kinds, strict=True)):
        sampled[row, accepted:] = -1
        if accepted and kind == _AT_VOCAB:
            sampled[row, accepted - 1] = _VOCAB
        elif accepted and kind == _FAR_BEYOND:  # kept in 32 bits it would be a token
            sampled[row, accepted - 1] = 2**32 + 5 if dtype == np.int64 else 2**31 - 1
        elif accepted and kind == _HOLE:
            sampled[row, 0] = -1
    discard = np.array([kind == _DISCARDED or row >= live for row, kind in enumerate(kinds)], bool)
    backup = np.arange(len(valid), dtype=dtype) % (_VOCAB - 1) + 500
    return {
        "sampled": Argument(sampled, layout),
        "discard": Argument(discard),
        "backup": Argument(backup),
        "vocab": _VOCAB,
    }


_FIXED = (
    ChoiceAxis("op", ("calc", "prepare", "next_token")),
    ChoiceAxis("dtype", ("int32", "int64")),
    ChoiceAxis("layout", tuple(LAYOUTS)),
    ChoiceAxis("tail", ("last", "null")),
)
_STEPPED = (
    RowsAxis("draft", most=7, total=4096),
    RowsAxis("extra", most=64, total=4096),
    RowsAxis("valid", most=8, total=4096 + 2048),
    RowsAxis("kind", most=4),
    StepIntAxis("live", up_to_batch=True),
)


def strategy() -> SearchStrategy[Case]:
    return cases_of(_FIXED, _STEPPED).map(_legal)


def _legal(case: Case) -> Case:
    """No request has more valid tokens than it drafted, and one."""
    steps = [
        {**step, "valid": [min(v, d + 1) for v, d in zip(_rows(step, "valid"), _rows(step, "draft"), strict=True)]}
        for step in case.steps
    ]
    return case.with_steps(steps)


TARGET = Target(
    name="spec_decode_metadata",
    summary="logits to sample from, tokens rejected, next token of a speculative step (vLLM's spec-decode and EAGLE metadata)",
    implementation=spec_decode_metadata,
    reference=reference,
    fixed=_FIXED,
    stepped=_STEPPED,
    build=build,
    draw=strategy,
)


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The first rows of a batch are those of these rows alone; in `calc` these are the live ones."""
    inputs = dict(call.inputs)
    op = inputs["op"]
    rows = int(inputs["live"]) if op == "calc" else (len(inputs["valid" if op == "prepare" else "backup"]) + 1) // 2
    kept = {"query_start_loc": rows + 1, "logits_indices": rows * (inputs.get("k", 0) + 1)}
    for name, value in inputs.items():
        if isinstance(value, np.ndarray) and value.ndim:
            inputs[name] = value[: kept.get(name, rows)].copy()
    alone = call.answer(inputs)
    for name, value in alone.items():
        total = {"logits_indices": "cu_num_sampled", "target_logits_indices": "cu_num_draft"}.get(name)
        size = len(value) if total is None else int(alone[total][-1]) if rows else 0
        if not np.array_equal(call.outputs[name][:size], value[:size]):
            return f"{name} is {call.outputs[name][:size].tolist()}, without padding it is {value[:size].tolist()}"
    return None


@TARGET.law
def bonus_and_target_partition_the_slots(call: LawCall) -> str | None:
    """Every slot of a live request is a target or its bonus, and none is both."""
    if call.inputs["op"] != "calc":
        return None
    out, live = call.outputs, int(call.inputs["live"])
    drafted, sampled = (int(out[name][-1]) if live else 0 for name in ("cu_num_draft", "cu_num_sampled"))
    slots = sorted([*out["target_logits_indices"][:drafted].tolist(), *out["bonus_logits_indices"][:live].tolist()])
    return None if slots == list(range(sampled)) else f"targets and bonuses are {slots}, there are {sampled} slots"


@TARGET.law
def index_stays_in_its_request(call: LawCall) -> str | None:
    """The drafter goes on from a token of the request itself, unless that was discarded."""
    if call.inputs["op"] != "prepare":
        return None
    begins, index = call.inputs["query_start_loc"], call.outputs["token_indices"]
    kept = (call.inputs["valid"] > 0) & (np.diff(begins) > 0)
    wrong = kept & ((index < begins[:-1]) | (index >= begins[1:]))
    return f"rows {np.flatnonzero(wrong).tolist()} go on from {index[wrong].tolist()}" if wrong.any() else None


@TARGET.law
def discarded_requests_take_their_backup(call: LawCall) -> str | None:
    """A discarded request has no valid token and goes on with its backup; nobody has more than `k + 1`."""
    if call.inputs["op"] != "next_token":
        return None
    discard, width = call.inputs["discard"], call.inputs["sampled"].shape[1]
    wrong = discard & ((call.outputs["valid"] != 0) | (call.outputs["next_token"] != call.inputs["backup"]))
    wrong |= call.outputs["valid"] > width
    return f"rows {np.flatnonzero(wrong).tolist()} have {call.outputs['valid'][wrong].tolist()} tokens" if wrong.any() else None


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(op: str, **arguments: Any) -> Tensors:
    """Makes the draft counts from the running sum, and stores the 0 in front of it as a scalar."""
    if op != "prepare":
        return spec_decode_metadata(op, **arguments)
    cu_draft = arguments["cu_draft"]
    begins = torch.empty(cu_draft.numel() + 1, dtype=cu_draft.dtype, device=cu_draft.device)
    begins[0] = 0
    begins[1:] = cu_draft
    return prepare(**{**arguments, "cu_draft": begins[1:]})


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: SGLang's window_kv_indices[:kv_last_index]")
def cuts_at_total(op: str, **arguments: Any) -> Tensors:
    """Cuts the slots at the number of sampled tokens, which the host must read, and fills the rest."""
    out = spec_decode_metadata(op, **arguments)
    if op == "calc" and arguments["tail"] == "null":
        out["logits_indices"][out["cu_num_sampled"][-1:].sum() :].fill_(-1)
    return out


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F13; https://github.com/vllm-project/vllm/issues/32799")
def frozen_staging(op: str, **arguments: Any) -> Tensors:
    """Sums the host's copy and stages the sums through fresh pinned memory, as the engine does outside a graph."""
    out = spec_decode_metadata(op, **arguments)
    if op == "calc":
        sums = torch.cumsum(arguments["draft_cpu"], 0, dtype=torch.int32).pin_memory()
        out["cu_num_draft"] = sums.to(arguments["draft"].device, non_blocking=True)
    return out


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "fault class F5; vLLM's llm_base_proposer adds to the shared host copy")
def raises_host_counts(op: str, **arguments: Any) -> Tensors:
    """Adds the bonus to the host's counts in place, which happens at capture and at no replay."""
    if op == "calc":
        arguments["draft_cpu"].add_(1)
    return spec_decode_metadata(op, **arguments)


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "fault class F15; https://github.com/ROCm/aiter/issues/2447")
def unwritten_head(op: str, **arguments: Any) -> Tensors:
    """Takes differences of the running sum and leaves the first request's element as it is."""
    out = spec_decode_metadata(op, **arguments)
    if op == "prepare":
        rejected = torch.empty_like(out["rejected"])
        rejected[1:] = out["rejected"][1:]
        out["rejected"] = rejected
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="inclusive against exclusive running sums: cu_num_draft has no leading 0")
def exclusive_sums(op: str, **arguments: Any) -> Tensors:
    """Gives where each request's draft tokens begin instead of where they end."""
    out = spec_decode_metadata(op, **arguments)
    if op == "calc":
        out["cu_num_draft"] = out["cu_num_draft"].roll(1) * (torch.arange(len(out["cu_num_draft"]), device="cuda") > 0)
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4; https://github.com/vllm-project/vllm/pull/47066")
def counts_padding(op: str, **arguments: Any) -> Tensors:
    """Takes every row of the bucket for a request, with what an earlier batch left in it."""
    if op == "calc":
        arguments["live"] = torch.full_like(arguments["live"], arguments["draft"].numel())
    return spec_decode_metadata(op, **arguments)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: leftover indices, as vLLM's own comment warns")
def keeps_old_indices(op: str, **arguments: Any) -> Tensors:
    """Writes the slots that have a token; the persistent buffer keeps its tail."""
    if op != "calc":
        return spec_decode_metadata(op, **arguments)
    buffer = arguments["logits_indices"]
    out = calc(**{**arguments, "logits_indices": torch.empty_like(buffer)})
    slots = torch.arange(buffer.numel(), device=buffer.device)
    buffer.copy_(torch.where(slots < out["cu_num_sampled"][-1:], out["logits_indices"], buffer))
    return {**out, "logits_indices": buffer}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="a request without draft tokens that was discarded has valid == 0")
def rejects_without_draft(op: str, **arguments: Any) -> Tensors:
    """Leaves out the guard: a discarded request that drafted nothing rejects one token."""
    if op != "prepare":
        return spec_decode_metadata(op, **arguments)
    cu_draft = arguments["cu_draft"]
    rejected = torch.diff(cu_draft, prepend=cu_draft.new_zeros(1)) + 1 - arguments["valid"]
    padding = torch.diff(arguments["query_start_loc"]) == 0
    rejected = rejected.masked_fill(padding, 0)
    return {"token_indices": arguments["query_start_loc"][1:] - 1 - rejected, "rejected": rejected}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the running sum read as counts: right for batch 1 only")
def sums_as_counts(op: str, **arguments: Any) -> Tensors:
    """Takes the running sum for each request's own count."""
    if op == "prepare":
        arguments["cu_draft"] = torch.cumsum(arguments["cu_draft"], 0, dtype=arguments["cu_draft"].dtype)
    return spec_decode_metadata(op, **arguments)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(op: str, **arguments: Any) -> Tensors:
    """Reads the sampled ids as if their rows were contiguous, as a kernel does that is given only a pointer."""
    if op == "next_token":
        ids = arguments["sampled"]
        arguments["sampled"] = torch.as_strided(ids, ids.shape, (ids.shape[1], 1), 0)
    return spec_decode_metadata(op, **arguments)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the accepted tokens are taken for a prefix of the row")
def last_by_count(op: str, **arguments: Any) -> Tensors:
    """Takes the token at `valid - 1`, which a -1 before it moves."""
    out = spec_decode_metadata(op, **arguments)
    if op == "next_token":
        at = (out["valid"] - 1).clamp_min(0)[:, None].long()
        out["next_token"] = torch.where(out["valid"] > 0, arguments["sampled"].gather(1, at)[:, 0], arguments["backup"])
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F9: narrowed to int32 before the range is checked")
def narrow_ids(op: str, **arguments: Any) -> Tensors:
    """Keeps token ids in 32 bits: one that is far out of range comes back as a token."""
    if op == "next_token":
        arguments["sampled"] = arguments["sampled"].to(torch.int32).to(arguments["sampled"].dtype)
    return spec_decode_metadata(op, **arguments)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="id == vocab is no token; vLLM masks ids from vocab_size on")
def vocab_inclusive(op: str, **arguments: Any) -> Tensors:
    """Accepts the id one behind the vocabulary."""
    if op == "next_token":
        arguments["vocab"] += 1
    return spec_decode_metadata(op, **arguments)
