"""`mamba_state_indices(op, ...)`: the state blocks of a padded batch, for mamba and gated-delta-net layers.

Three ops of vLLM's builders for linear attention, chosen by the host string `op`; each has its own arguments and returns a
dict. The bucket has `batch` rows, of which the first `live` (int32 `[]`, on the host) are real. The host's part runs before
capture and before every replay, outside the graph, and pads the static buffers; the graph's part must not depend on `live`, or
on anything else that the host knew at capture. Integer tensors are int32 or int64, on the device, and may be strided views,
unless another thing is said. Blocks may have any number that fits. `null` (host) is the block of a padded row: 0 (vLLM's
`NULL_BLOCK_ID`), or -1 (LMDeploy, and `PAD_SLOT_ID`).

`align` (`mamba_get_block_table_tensor` in align mode, `v1/attention/backends/utils.py`): the blocks from the last full one on.
- `block_table` `[batch, columns]`: the host fills padded rows with `null`; they come with the blocks of an earlier batch.
- `seq_lens` `[batch]`: the host clears padded rows, which come with lengths that this table is too small for. A live row may
  be 0 too.
- `block_size`, `width` (host): `width` is 1 and the speculative tokens; `columns` is enough for every row.
- returns `blocks` `[batch, width]`: the columns from `(seq_len - 1) // block_size` on, from 0 for an empty row.

`stage` (`gdn_attn.py`, `mamba_attn.py`, `linear_attn.py`): copies a batch into the persistent buffers that the graph reads.
- `state` `[batch]`, `query_start_loc` `[batch + 1]`: this batch's, on the device, stale from `live` on.
- `accepted` int32 `[batch]`, pinned: the accepted tokens of each request, stale from `live` on.
- `state_buf` `[capacity]`, `query_start_buf` `[capacity + 1]`, `accepted_buf` `[capacity]` (int32): persistent. The host writes
  the bucket's rows: padded ones get `null`, the last offset (flat) and 1. Rows behind the bucket belong to larger buckets.
- returns the whole buffers `state`, `query_start_loc` and `accepted`, and `last_accepted` `[batch]`, which the graph makes of
  them: the place of each request's last accepted token.

`split` (`gdn_attn.py`): orders the tokens of a mixed batch, those of requests without draft tokens first.
- `is_spec` bool `[batch]` (stale from `live` on), `is_spec_cpu`: the host's copy, which a graph does not see;
  `query_start_loc` `[batch + 1]`, flat from `live` on.
- `num_tokens` (host): the bucket of tokens. Those behind the last offset are padding and keep their place at the end.
- returns `order` int64 `[num_tokens]`, stable, and `num_non_spec` int64 `[1]`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Mode, TwoPart, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, StepValue
from capfuzz.targets.model import Target

_NULLS = {"zero": 0, "minus_one": -1}
_STALE_BLOCK = 900_000  # what padded rows and persistent buffers hold: blocks that belong to somebody else
_STALE_COUNT = 9
_FIRST_BLOCKS = {"low": (0, 0), "high": (2**30, 2**40)}  # in int32, in int64

Tensors = dict[str, torch.Tensor]


def prepare(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    if op == "align":
        pad_tables(int(live), **arguments)
    elif op == "stage":
        stage(int(live), **arguments)


def body(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    if op == "align":
        return align(**arguments)
    if op == "stage":
        return read_staged(**arguments)
    return split(**arguments)


def pad_tables(live: int, block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, width: int, null: int) -> None:
    block_table[live:].fill_(null)
    seq_lens[live:].zero_()


def align(block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, width: int, null: int) -> Tensors:
    first = torch.floor_divide(seq_lens - 1, block_size).clamp_min(0)
    return {"blocks": block_table.gather(1, first[:, None] + torch.arange(width, device=first.device))}


def stage(
    live: int,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    accepted: torch.Tensor,
    state_buf: torch.Tensor,
    query_start_buf: torch.Tensor,
    accepted_buf: torch.Tensor,
    null: int,
) -> None:
    batch = state.numel()
    state_buf[:live].copy_(state[:live])
    state_buf[live:batch].fill_(null)
    query_start_buf[: live + 1].copy_(query_start_loc[: live + 1])
    query_start_buf[live + 1 : batch + 1].copy_(query_start_loc[live : live + 1].expand(batch - live))
    accepted_buf[:live].copy_(accepted[:live], non_blocking=True)
    accepted_buf[live:batch].fill_(1)


def read_staged(
    state: torch.Tensor, state_buf: torch.Tensor, query_start_buf: torch.Tensor, accepted_buf: torch.Tensor, **others: Any
) -> Tensors:
    rows = slice(state.numel())
    return {
        "state": state_buf,
        "query_start_loc": query_start_buf,
        "accepted": accepted_buf,
        "last_accepted": query_start_buf[rows] + accepted_buf[rows] - 1,
    }


def split(is_spec: torch.Tensor, is_spec_cpu: torch.Tensor, query_start_loc: torch.Tensor, num_tokens: int) -> Tensors:
    # one more row for the padding, so that the lengths add up to the bucket
    lengths = torch.diff(F.pad(query_start_loc, (0, 1), value=num_tokens))
    classes = F.pad(is_spec.to(torch.uint8), (0, 1), value=1)  # numbers, for them to be sorted
    spec = torch.repeat_interleave(classes, lengths, output_size=num_tokens)
    return {"order": torch.argsort(spec, stable=True), "num_non_spec": num_tokens - spec.sum(0, keepdim=True)}


def reference(op: str, live: np.ndarray, **arguments: Any) -> dict[str, np.ndarray]:
    if op == "align":
        return _align(int(live), **arguments)
    return _stage(int(live), **arguments) if op == "stage" else _split(int(live), **arguments)


def _align(
    live: int, block_table: np.ndarray, seq_lens: np.ndarray, block_size: int, width: int, null: int
) -> dict[str, np.ndarray]:
    blocks = np.full((len(seq_lens), width), null, block_table.dtype)
    for row, length in enumerate(seq_lens[:live].tolist()):
        first = (length - 1) // block_size if length else 0
        blocks[row] = block_table[row, first : first + width]
    return {"blocks": blocks}


def _stage(
    live: int,
    state: np.ndarray,
    query_start_loc: np.ndarray,
    accepted: np.ndarray,
    state_buf: np.ndarray,
    query_start_buf: np.ndarray,
    accepted_buf: np.ndarray,
    null: int,
) -> dict[str, np.ndarray]:
    states, begins, counts = state_buf.copy(), query_start_buf.copy(), accepted_buf.copy()
    for row in range(len(state)):
        states[row] = state[row] if row < live else null
        counts[row] = accepted[row] if row < live else 1
    for row in range(len(state) + 1):
        begins[row] = query_start_loc[min(row, live)]
    last = np.array([begins[row] + counts[row] - 1 for row in range(len(state))], begins.dtype)
    return {"state": states, "query_start_loc": begins, "accepted": counts, "last_accepted": last}


def _split(
    live: int, is_spec: np.ndarray, is_spec_cpu: np.ndarray, query_start_loc: np.ndarray, num_tokens: int
) -> dict[str, np.ndarray]:
    plain: list[int] = []
    drafted: list[int] = []
    for row in range(live):
        (drafted if is_spec[row] else plain).extend(range(query_start_loc[row], query_start_loc[row + 1]))
    padding = range(len(plain) + len(drafted), num_tokens)
    return {"order": np.array([*plain, *drafted, *padding], np.int64), "num_non_spec": np.array([len(plain)], np.int64)}


def build(case: Case) -> Sequence[Feed]:
    """Blocks and states are numbered anew in every step, so that what an earlier one left is seen to be old."""
    values = case.values
    op, dtype, layout = str(values["op"]), np.dtype(str(values["dtype"])), LAYOUTS[str(values["layout"])]
    null, size, spare = _NULLS[str(values["null"])], _int(values["block_size"]), _int(values["spare"])
    width = 1 + _int(values["spec_tokens"])
    first = _FIRST_BLOCKS[str(values["blocks"])][dtype == np.int64]
    batch = len(_rows(case.steps[0], "query"))
    columns = width + max(max(0, max(_rows(step, "seq"), default=0) - 1) // size for step in case.steps)
    num_tokens = spare + max(sum(_rows(step, "query")[: _int(step["live"])]) for step in case.steps)
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps, 1):
        live = _int(step["live"])
        real = np.arange(batch) < live
        begins = np.zeros(batch + 1, dtype)
        begins[1:] = np.cumsum(np.where(real, _array(step, "query"), 0))
        feed: dict[str, Any] = {"op": op, "live": Argument(np.array(live, np.int32), space=Space.HOST)}
        if op == "align":
            table = first + 100_000 * number + np.arange(batch * columns, dtype=dtype).reshape(batch, columns)
            table[live:] = _STALE_BLOCK
            lengths = np.where(real, _array(step, "seq"), columns * size + 1)
            feed["block_table"] = Argument(table, layout)
            feed["seq_lens"] = Argument(lengths.astype(dtype))
            feed |= {"block_size": size, "width": width, "null": null}
        elif op == "stage":
            begins[live + 1 :] += _STALE_COUNT
            state = np.where(real, first + 1 + 10_000 * number + np.arange(batch), _STALE_BLOCK)
            accepted = np.where(real, _array(step, "accepted"), _STALE_COUNT)
            feed["state"] = Argument(state.astype(dtype), layout)
            feed["query_start_loc"] = Argument(begins)
            feed["accepted"] = Argument(accepted.astype(np.int32), space=Space.PINNED)
            feed["state_buf"] = Argument(np.full(batch + spare, _STALE_BLOCK + 1, dtype))
            feed["query_start_buf"] = Argument(np.full(batch + spare + 1, _STALE_BLOCK + 2, dtype))
            feed["accepted_buf"] = Argument(np.full(batch + spare, _STALE_COUNT + 1, np.int32))
            feed["null"] = null
        else:
            is_spec = np.where(real, _array(step, "spec"), 1).astype(bool)
            feed["is_spec"] = Argument(is_spec, layout)
            feed["is_spec_cpu"] = Argument(is_spec & real, space=Space.HOST)
            feed["query_start_loc"] = Argument(begins, layout)
            feed["num_tokens"] = num_tokens
        feeds.append(feed)
    return feeds


def _int(value: StepValue | str) -> int:
    assert isinstance(value, int)
    return value


def _rows(step: Mapping[str, StepValue], name: str) -> list[int]:
    rows = step[name]
    assert isinstance(rows, list)
    return rows


def _array(step: Mapping[str, StepValue], name: str) -> np.ndarray:
    return np.array(_rows(step, name), np.int64)


TARGET = Target(
    name="mamba_state_indices",
    summary="state blocks, staged state indices and the token split of a padded batch (vLLM's mamba and GDN builders)",
    implementation=TwoPart(prepare, body),
    reference=reference,
    fixed=(
        ChoiceAxis("op", ("align", "stage", "split")),
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("null", tuple(_NULLS)),
        ChoiceAxis("blocks", tuple(_FIRST_BLOCKS)),
        IntAxis("block_size", simplest=1, most=4096, common=(1, 2, 4, 16, 64)),
        IntAxis("spec_tokens", simplest=0, most=16, common=(0, 1, 3)),
        IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
    ),
    stepped=(
        RowsAxis("query", most=64, total=4096),
        RowsAxis("seq", most=256, total=4096),
        RowsAxis("accepted", least=1, most=8),
        RowsAxis("spec", most=1),
        StepIntAxis("live", up_to_batch=True),
    ),
    build=build,
)


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The live rows of a padded batch are those of the batch alone."""
    inputs, live = dict(call.inputs), int(call.inputs["live"])
    for name, value in inputs.items():
        if isinstance(value, np.ndarray) and value.ndim:
            inputs[name] = value[: live + name.startswith("query_start")].copy()
    for name, value in call.answer(inputs).items():
        if not np.array_equal(call.outputs[name][: len(value)], value):
            return f"{name} is {call.outputs[name][: len(value)].tolist()}, without padding it is {value.tolist()}"
    return None


@TARGET.law
def order_is_a_permutation(call: LawCall) -> str | None:
    """Every token of the bucket has one place, and each of the two classes is in the tokens' own order."""
    if call.inputs["op"] != "split":
        return None
    order, first = call.outputs["order"], int(call.outputs["num_non_spec"][0])
    if not np.array_equal(np.sort(order), np.arange(call.inputs["num_tokens"])):
        return f"the order is no permutation: {order.tolist()}"
    falls = (np.diff(order[:first]) < 0).any() or (np.diff(order[first:]) < 0).any()
    return f"a class is out of order: {order.tolist()}" if falls else None


@TARGET.law
def rows_are_independent(call: LawCall) -> str | None:
    """The rows of a table in another order give the same blocks in that order."""
    inputs, live = dict(call.inputs), int(call.inputs["live"])
    if inputs["op"] != "align" or live < 2:
        return None
    for name in ("block_table", "seq_lens"):
        inputs[name] = np.concatenate([inputs[name][:live][::-1], inputs[name][live:]])
    turned, blocks = call.answer(inputs)["blocks"][:live][::-1], call.outputs["blocks"][:live]
    return None if np.array_equal(turned, blocks) else f"blocks are {blocks.tolist()}, from turned rows {turned.tolist()}"


@TARGET.law
def padded_rows_are_inert(call: LawCall) -> str | None:
    """Padded rows point at `null`, have no tokens, and one accepted token."""
    live, out, null = int(call.inputs["live"]), call.outputs, call.inputs.get("null")
    if call.inputs["op"] == "align":
        inert = bool((out["blocks"][live:] == null).all())
    elif call.inputs["op"] == "stage":
        rows = slice(live, len(call.inputs["state"]))
        inert = bool((out["state"][rows] == null).all() and (out["accepted"][rows] == 1).all())
        inert = inert and not np.diff(out["query_start_loc"])[rows].any()
    else:
        return None
    return None if inert else f"rows from {live} on are not: { {name: value[live:].tolist() for name, value in out.items()} }"


# -- faulty variants ---------------------------------------------------------------------------------------------------


def in_prepare(fault: Callable[..., Any]) -> TwoPart:
    """An implementation whose host part is `fault`."""

    @functools.wraps(fault)
    def run(prepared: None, **arguments: Any) -> Tensors:
        return body(prepared, **arguments)

    return TwoPart(fault, run)


def in_body(fault: Callable[..., Tensors]) -> TwoPart:
    """An implementation of which `fault` is what is captured."""
    return TwoPart(prepare, fault)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4; https://github.com/vllm-project/vllm/pull/37728")
@in_prepare
def stale_blocks(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Clears the lengths of padded rows and leaves their blocks, which belong to other requests by now."""
    if op == "align":
        arguments["seq_lens"][int(live) :].zero_()
    else:
        prepare(mode, op, live, **arguments)


@TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F4: the capture path pads, the replay path forgets")
@in_prepare
def pads_for_capture_only(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Fills padded rows of the block table where it builds for capture, and not before a replay."""
    if op == "align" and mode is Mode.REPLAY:
        arguments["seq_lens"][int(live) :].zero_()
    else:
        prepare(mode, op, live, **arguments)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4; https://github.com/vllm-project/vllm-ascend/pull/12040")
@in_prepare
def copies_over_the_tail(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Clears the tail, and then copies the whole bucket over it."""
    prepare(mode, op, live, **arguments)
    if op == "stage":
        arguments["state_buf"][: arguments["state"].numel()].copy_(arguments["state"])


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4; https://github.com/vllm-project/vllm/pull/53059")
@in_prepare
def leaves_accepted_tail(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Padded rows keep the accepted counts of an earlier batch."""
    kept = arguments["accepted_buf"][int(live) :].clone() if op == "stage" else None
    prepare(mode, op, live, **arguments)
    if kept is not None:
        arguments["accepted_buf"][int(live) :].copy_(kept)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: the tail of the buffer taken for the bucket's; vLLM #53051")
@in_prepare
def clears_behind_the_bucket(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Pads the whole buffer, and with it the rows of larger buckets."""
    prepare(mode, op, live, **arguments)
    if op == "stage":
        arguments["state_buf"][int(live) :].fill_(arguments["null"])


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: 0 is a block of somebody where the null block is -1")
@in_prepare
def null_is_zero(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Fills padded rows with 0, whatever the null block is."""
    if op == "stage":
        arguments["null"] = 0
    prepare(mode, op, live, **arguments)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="LMDeploy pads q_start_loc with 0; whoever takes differences needs it flat")
@in_prepare
def zero_offsets(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Padded offsets are 0: the first padded row has a negative length."""
    prepare(mode, op, live, **arguments)
    if op == "stage":
        arguments["query_start_buf"][int(live) + 1 : arguments["state"].numel() + 1].zero_()


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "fault class F5; https://github.com/vllm-project/vllm/pull/51585")
@in_prepare
def clears_host_copy_for_capture(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> None:
    """Building for capture clears the host's copy, which the next builder reads."""
    prepare(mode, op, live, **arguments)
    if op == "stage" and mode is Mode.CAPTURE:
        arguments["accepted"].zero_()


def _stage_anew(mode: Mode, op: str, live: torch.Tensor, **arguments: Any) -> torch.Tensor | None:
    prepare(mode, op, live, **arguments)
    return arguments["state_buf"].clone() if op == "stage" else None


def fresh_buffer(prepared: torch.Tensor | None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Every preparation makes a new tensor of state indices; the graph reads the first, which is gone."""
    out = body(None, op, live, **arguments)
    return out if prepared is None else {**out, "state": prepared + 0}


TARGET.variant(Verdict.DANGLING_BUFFER, source="fault class F3; https://github.com/vllm-project/vllm/pull/36070")(
    TwoPart(_stage_anew, fresh_buffer)
)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F13; https://github.com/vllm-project/vllm/pull/36013")
@in_body
def frozen_staging(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Stages the accepted counts once more, in the graph, through fresh pinned memory."""
    out = body(prepared, op, live, **arguments)
    if op == "stage":
        rows, batch = int(live), arguments["state"].numel()
        counts = torch.tensor([*arguments["accepted"][:rows].tolist(), *[1] * (batch - rows)], dtype=torch.int32)
        out["accepted"][:batch].copy_(counts.pin_memory(), non_blocking=True)
    return out


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F11: GDN's branch without drafts, captured in silence")
@in_body
def branches_on_host_mask(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Skips the split where the host knows of no request with draft tokens."""
    out = body(prepared, op, live, **arguments)
    if op == "split" and not arguments["is_spec_cpu"].any():
        out["order"] = torch.arange(arguments["num_tokens"], device=out["order"].device)
    return out


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: repeat_interleave without output_size")
@in_body
def no_output_size(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Lets `repeat_interleave` ask the device how many tokens there are."""
    out = body(prepared, op, live, **arguments)
    if op == "split":
        offsets = arguments["query_start_loc"]
        spec = torch.repeat_interleave(arguments["is_spec"], torch.diff(offsets))
        out["num_non_spec"] = (~spec).sum(0, keepdim=True)
    return out


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
@in_body
def scalar_store(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Stores the bucket's size behind the offsets as a scalar."""
    if op != "split":
        return body(prepared, op, live, **arguments)
    offsets = F.pad(arguments["query_start_loc"], (0, 1))
    offsets[-1] = arguments["num_tokens"]
    classes = F.pad(arguments["is_spec"].to(torch.uint8), (0, 1), value=1)
    spec = torch.repeat_interleave(classes, torch.diff(offsets), output_size=arguments["num_tokens"])
    return {
        "order": torch.argsort(spec, stable=True),
        "num_non_spec": arguments["num_tokens"] - spec.sum(0, keepdim=True),
    }


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "fault class F15; https://github.com/sgl-project/sglang/pull/15306")
@in_body
def unwritten_padding(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Leaves the places of padded tokens as they are."""
    out = body(prepared, op, live, **arguments)
    if op == "split":
        slots = torch.arange(arguments["num_tokens"], device=out["order"].device)
        out["order"] = torch.where(slots < arguments["query_start_loc"][-1:], out["order"], torch.empty_like(out["order"]))
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8; vLLM's _mamba_align_block_table_kernel takes the strides")
@in_body
def stride_blind(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Reads the block table as if it were contiguous, as a kernel does that is given only a pointer."""
    if op == "align":
        table = arguments["block_table"]
        arguments["block_table"] = torch.as_strided(table, table.shape, (table.shape[1], 1), 0)
    return body(prepared, op, live, **arguments)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the last token of a full block is in that block, not in the next")
@in_body
def next_block_too_soon(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Divides the length instead of the last position: a full block counts as the next one."""
    if op == "align":
        most = (arguments["block_table"].shape[1] - arguments["width"]) * arguments["block_size"]
        arguments["seq_lens"] = torch.clamp(arguments["seq_lens"] + 1, max=most + 1)
    return body(prepared, op, live, **arguments)


@TARGET.variant(
    Verdict.REFERENCE_MISMATCH, source="fault class F9: int32 overflow, as in vLLM's _mamba_align_block_table_kernel"
)
@in_body
def narrows(prepared: None, op: str, live: torch.Tensor, **arguments: Any) -> Tensors:
    """Takes every block for an int32."""
    out = body(prepared, op, live, **arguments)
    for name in {"blocks", "state"} & out.keys():
        out[name] = out[name].to(torch.int32).to(out[name].dtype)
    return out
