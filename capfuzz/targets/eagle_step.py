"""`eagle_step(...)`: one step of a draft model: positions and lengths advance in place, and each request gets its next slot.

Three ops in the order in which the captured draft step runs them: vLLM's `map_to_kernel_block_table`, its EAGLE step
(`v1/spec_decode/utils.py`; `update_draft_inputs` in V2), and SGLang's lengths of a sliding window.

- `positions`: `[bucket]` int64, state: the position of each request's last token. Advanced in place.
- `seq_lens`: `[bucket]` int32 or int64, state: how many tokens each request has. Advanced in place.
- `block_table`: `[bucket, blocks]` int32: the block manager's blocks. What is not allocated is 0 (the null block) or -1.
- `kernel_table`: `[bucket, blocks * ratio + spare]` int32, persistent: block b becomes kernel blocks `b * ratio` to
  `b * ratio + ratio - 1`, and -1 stays -1. Its rows are longer than what is written.
- `slots`: `[bucket]` int64, persistent: `kernel block * block_size + offset` of the new position. Every element is written.
- `live`: int32 `[]`: how many rows are real. Padded rows keep position and length, and get slot -1 and an empty window.
- host: `ratio`, `block_size` (a kernel block's), `max_len`, `window`, and `rule`, what becomes of a request that reaches
  `max_len`: in `v1` position 0, length 1, slot -1; in `v2` it stays at the last position and has a slot there.
- returns all buffers as they are then, `kernel_table` without its spare columns, and `window_lens` and `window_starts`.

All tensors are on the device. Two calls are not one call: replays advance as eager calls do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis.strategies import SearchStrategy

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, LawCall, Mode, TwoPart, Verdict
from capfuzz.targets.axes import ChoiceAxis, FixedAxis, IntAxis, RowsAxis, StepAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.generate import cases_of
from capfuzz.targets.model import Target

Tensors = dict[str, torch.Tensor]
_STALE = 7  # the length that an earlier batch left in padded rows


def eagle_step(block_table: torch.Tensor, kernel_table: torch.Tensor, ratio: int, **others: Any) -> Tensors:
    return advance(table=map_to_kernel_blocks(block_table, kernel_table, ratio), **others)


def map_to_kernel_blocks(block_table: torch.Tensor, kernel_table: torch.Tensor, ratio: int) -> torch.Tensor:
    """The columns of `kernel_table` that it fills."""
    blocks = block_table.shape[1]
    table = kernel_table.narrow(1, 0, blocks * ratio)
    parts = torch.arange(ratio, dtype=torch.int32, device=table.device)
    torch.add(parts, block_table.unsqueeze(-1), alpha=ratio, out=table.view(len(table), blocks, ratio))
    return table.clamp_(min=-1)  # the kernel blocks of -1


def advance(
    positions: torch.Tensor,
    seq_lens: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    live: torch.Tensor,
    block_size: int,
    max_len: int,
    window: int,
    rule: str,
) -> Tensors:
    """The step, on kernel blocks."""
    is_padding = torch.arange(positions.numel(), device=positions.device) >= live
    is_live = ~is_padding
    positions.add_(is_live)
    seq_lens.add_(is_live)
    seq_lens.clamp_(max=max_len)  # what padded rows hold is within the limits
    has_no_slot = is_padding
    if rule == "v1":
        is_over = positions >= max_len
        has_no_slot = is_over | is_padding
        positions.masked_fill_(is_over, 0)
        seq_lens.masked_fill_(is_over, 1)
    else:
        positions.clamp_(max=max_len - 1)
    next_slots(positions, table, slots, has_no_slot, block_size)
    lens = seq_lens.masked_fill(is_padding, 0)
    window_lens = lens.clamp(max=window)
    state = {"positions": positions, "seq_lens": seq_lens, "slots": slots, "kernel_table": table}
    return {**state, "window_lens": window_lens, "window_starts": lens - window_lens}


def next_slots(
    positions: torch.Tensor, table: torch.Tensor, slots: torch.Tensor, has_none: torch.Tensor, block_size: int
) -> None:
    columns = (positions // block_size).clamp(max=table.shape[1] - 1)
    blocks = table.gather(1, columns.unsqueeze(1)).squeeze(1)
    blocks.masked_fill_(has_none, -1)
    # A block of -1 gives a negative number, whatever the offset. The sum is int64, as positions are.
    torch.clamp(torch.add(positions % block_size, blocks, alpha=block_size), min=-1, out=slots)


def reference(
    positions: np.ndarray,
    seq_lens: np.ndarray,
    block_table: np.ndarray,
    kernel_table: np.ndarray,
    slots: np.ndarray,
    live: np.ndarray,
    ratio: int,
    block_size: int,
    max_len: int,
    window: int,
    rule: str,
) -> dict[str, np.ndarray]:
    """Request by request, in Python's integers."""
    rows, width = len(positions), block_table.shape[1] * ratio
    table = [[b * ratio + part if b >= 0 else -1 for b in row for part in range(ratio)] for row in block_table.tolist()]
    new_positions, new_lens, new_slots = positions.tolist(), seq_lens.tolist(), [-1] * rows
    window_lens, window_starts = [0] * rows, [0] * rows
    for row in range(int(live)):
        position, length = new_positions[row] + 1, min(new_lens[row] + 1, max_len)
        is_over = position >= max_len
        if is_over:
            position, length = (0, 1) if rule == "v1" else (max_len - 1, length)
        block = table[row][min(position // block_size, width - 1)]
        if block >= 0 and not (is_over and rule == "v1"):
            new_slots[row] = block * block_size + position % block_size
        new_positions[row], new_lens[row] = position, length
        window_lens[row] = min(length, window)
        window_starts[row] = length - window_lens[row]
    return {
        "positions": np.array(new_positions, positions.dtype),
        "seq_lens": np.array(new_lens, seq_lens.dtype),
        "slots": np.array(new_slots, np.int64),
        "kernel_table": np.array(table, np.int32).reshape(rows, width),
        "window_lens": np.array(window_lens, seq_lens.dtype),
        "window_starts": np.array(window_starts, seq_lens.dtype),
    }


def build(case: Case) -> Sequence[Feed]:
    host = {name: value for name in ("ratio", "block_size", "max_len", "window") if isinstance(value := case.values[name], int)}
    blocks, layout = case.values["blocks"], LAYOUTS[str(case.values["layout"])]
    null = 0 if case.values["null"] == "zero" else -1
    assert isinstance(blocks, int)
    feeds: list[Feed] = []
    for index, step in enumerate(case.steps):
        rows, live, first = step["lens"], step["live"], step["first_block"]
        assert isinstance(rows, list) and isinstance(live, int) and isinstance(first, int)
        if (first + len(rows) * blocks) * host["ratio"] >= 2**31:
            raise InvalidCaseError(f"case.steps[{index}].first_block", "must leave room for the blocks in int32")
        lens = np.array(rows, np.int64)
        lens[live:] = min(_STALE, host["max_len"])
        table = first + np.arange(len(rows) * blocks).reshape(-1, blocks)
        allocated = lens // (host["block_size"] * host["ratio"]) + 1  # enough for one token more
        table[np.arange(blocks) >= allocated[:, None]] = null
        feeds.append(
            {
                "positions": Argument(np.maximum(lens - 1, 0), layout, is_state=True),
                "seq_lens": Argument(lens.astype(str(case.values["dtype"])), layout, is_state=True),
                "block_table": Argument(table.astype(np.int32), layout),
                "kernel_table": Argument(np.full((len(rows), blocks * host["ratio"] + 1), -7, np.int32)),
                "slots": Argument(np.full(len(rows), -7, np.int64)),
                "live": Argument(np.array(live, np.int32)),
                **host,
                "rule": str(case.values["rule"]),
            }
        )
    return feeds


FIXED: tuple[FixedAxis, ...] = (
    ChoiceAxis("dtype", ("int32", "int64")),
    ChoiceAxis("layout", tuple(LAYOUTS)),
    ChoiceAxis("rule", ("v1", "v2")),
    ChoiceAxis("null", ("zero", "minus_one")),
    IntAxis("blocks", simplest=1, most=64, common=(1, 2, 4)),
    IntAxis("ratio", simplest=1, most=16, common=(1, 2, 4)),
    IntAxis("block_size", simplest=1, most=256, common=(1, 4, 16)),
    IntAxis("max_len", simplest=1, most=4096, common=(16, 33, 64)),
    IntAxis("window", simplest=1, most=4096, common=(1, 8, 32)),
)
STEPPED: tuple[StepAxis, ...] = (
    RowsAxis("lens", most=2**20),
    StepIntAxis("live", up_to_batch=True),
    StepIntAxis("first_block", common=(1, 5, 2**26)),
)


def strategy() -> SearchStrategy[Case]:
    """The axes' own way, with two changes at most: each step costs dozens of ops, and advances the state once more anyway."""
    return cases_of(FIXED, STEPPED).map(lambda case: case.with_steps(case.steps[:3]))


TARGET = Target(
    name="eagle_step",
    summary="a draft step in place: kernel block table, next positions, lengths and slots, sliding window (vLLM, SGLang)",
    implementation=eagle_step,
    reference=reference,
    fixed=FIXED,
    stepped=STEPPED,
    draw=strategy,
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------

_BY_ROW = ("positions", "seq_lens", "block_table", "kernel_table", "slots")


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The live rows of a padded batch are those of the batch alone, and padded rows keep their state."""
    live = int(call.inputs["live"])
    if live == call.inputs["slots"].size:
        return None
    alone = call.answer({**call.inputs, **{name: call.inputs[name][:live].copy() for name in _BY_ROW}})
    for name, rows in alone.items():
        if not np.array_equal(call.outputs[name][:live], rows):
            return f"{name} of the live rows is {call.outputs[name][:live].tolist()}, without padding {rows.tolist()}"
    touched = [n for n in ("positions", "seq_lens") if not np.array_equal(call.outputs[n][live:], call.inputs[n][live:])]
    return f"{', '.join(touched)} of padded rows changed" if touched else None


@TARGET.law
def kernel_blocks_give_the_block_back(call: LawCall) -> str | None:
    """A kernel block divided by the ratio is the block that it is part of; -1 stays -1."""
    back = call.outputs["kernel_table"] // call.inputs["ratio"]
    blocks = np.repeat(call.inputs["block_table"], call.inputs["ratio"], axis=1)
    return None if np.array_equal(back, blocks) else f"blocks {blocks.tolist()} came back as {back.tolist()}"


@TARGET.law
def window_ends_where_the_request_ends(call: LawCall) -> str | None:
    """Start and length of a window add up to the request's length, and no window is longer than allowed."""
    live, out = int(call.inputs["live"]), call.outputs
    ends = (out["window_starts"] + out["window_lens"])[:live]
    if not np.array_equal(ends, out["seq_lens"][:live]) or (out["window_lens"] > call.inputs["window"]).any():
        return f"windows of {out['window_lens'].tolist()} from {out['window_starts'].tolist()}"
    return None


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1: a scalar is copied to the device")
def scalar_store(slots: torch.Tensor, **others: Any) -> Tensors:
    """Clears the last slot by a scalar store before the step."""
    if slots.numel():
        slots[-1] = -1
    return eagle_step(slots=slots, **others)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: a slice by a count on the device")
def slices_by_live(positions: torch.Tensor, live: torch.Tensor, **others: Any) -> Tensors:
    """Touches the live rows with a slice, for which the host must know how many they are."""
    positions[:live].clamp_(min=0)
    return eagle_step(positions=positions, live=live, **others)


@TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F11: a branch on whether the step is captured")
def ends_in_capture(positions: torch.Tensor, max_len: int, **others: Any) -> Tensors:
    """Puts every request at its end while capturing, for nobody to go on from the warm-up's: every replay does that too."""
    out = eagle_step(positions=positions, max_len=max_len, **others)
    if torch.cuda.is_current_stream_capturing():
        positions.fill_(max_len)
    return out


_own: deque[torch.Tensor] = deque(maxlen=64)  # the oldest one is no longer in use


@TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F14: warming up advances the state")
def own_positions(positions: torch.Tensor, **others: Any) -> Tensors:
    """Advances a copy of its own, taken in eager: replays go on from where warming up has left it."""
    if not torch.cuda.is_current_stream_capturing():
        _own.append(positions.clone())
    own = next((own for own in reversed(_own) if own.shape == positions.shape), positions)
    out = eagle_step(positions=own, **others)
    return {**out, "positions": positions.copy_(own)}


def _map_table(mode: Mode, block_table: torch.Tensor, kernel_table: torch.Tensor, ratio: int, **others: Any) -> None:
    if mode is not Mode.REPLAY:
        map_to_kernel_blocks(block_table, kernel_table, ratio)


def table_of_capture(
    prepared: None, block_table: torch.Tensor, kernel_table: torch.Tensor, ratio: int, **others: Any
) -> Tensors:
    """Maps the block table outside the graph, and not again before a replay."""
    return advance(table=kernel_table.narrow(1, 0, block_table.shape[1] * ratio), **others)


TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F4: host preparation that replays need, at capture only")(
    TwoPart(_map_table, table_of_capture)
)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F9: int32 overflow; vLLM #50427")
def narrow_slots(block_size: int, kernel_table: torch.Tensor, slots: torch.Tensor, **others: Any) -> Tensors:
    """Computes slots in the block table's int32."""
    out = eagle_step(block_size=block_size, kernel_table=kernel_table, slots=slots, **others)
    slots.copy_(slots.int())
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: -1 is mapped as if it were a block; vLLM #43869")
def maps_minus_one(block_table: torch.Tensor, kernel_table: torch.Tensor, ratio: int, **others: Any) -> Tensors:
    """Maps -1 to the `ratio` kernel blocks below zero, of which only one is -1."""
    out = eagle_step(block_table=block_table, kernel_table=kernel_table, ratio=ratio, **others)
    parts = torch.arange(ratio, dtype=torch.int32, device=block_table.device)
    out["kernel_table"].copy_((block_table.unsqueeze(-1) * ratio + parts).flatten(1))
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: padded rows advance too; vLLM #47066")
def advances_padding(live: torch.Tensor, positions: torch.Tensor, **others: Any) -> Tensors:
    """Steps every row of the bucket."""
    return eagle_step(live=torch.full_like(live, positions.numel()), positions=positions, **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F16: a request that is full writes to its first block")
def slot_of_a_full_request(slots: torch.Tensor, rule: str, live: torch.Tensor, **others: Any) -> Tensors:
    """Gives a request that reaches the limit the slot of position 0, where V1 gives it none."""
    out = eagle_step(slots=slots, rule=rule, live=live, **others)
    if rule == "v1":
        is_padding = torch.arange(slots.numel(), device=slots.device) >= live
        next_slots(out["positions"], out["kernel_table"], slots, is_padding, others["block_size"])
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed; vLLM #42135")
def stride_blind(block_table: torch.Tensor, **others: Any) -> Tensors:
    """Reads the block table by its width, from the start of its storage."""
    dense = torch.as_strided(block_table, block_table.shape, (block_table.shape[1], 1), 0)
    return eagle_step(block_table=dense, **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the window of the step before")
def window_before_the_step(seq_lens: torch.Tensor, window: int, **others: Any) -> Tensors:
    """Takes the window from the lengths as they were."""
    before = seq_lens.clamp(max=window)
    return {**eagle_step(seq_lens=seq_lens, window=window, **others), "window_lens": before}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F3: a fresh table where the persistent one is read")
def fresh_table(kernel_table: torch.Tensor, block_table: torch.Tensor, ratio: int, **others: Any) -> Tensors:
    """Maps into a new tensor; who reads the persistent table finds what it held."""
    out = eagle_step(kernel_table=torch.zeros_like(kernel_table), block_table=block_table, ratio=ratio, **others)
    return {**out, "kernel_table": kernel_table.narrow(1, 0, block_table.shape[1] * ratio)}
