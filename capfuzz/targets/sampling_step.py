"""`sampling_step(...)`: one token a request, drawn by a counter-based generator whose seeds the host has.

A request's draw depends on its own seed and position and on nothing else, whatever batch it is in: vLLM's V2 sampler,
FlashInfer's `seed` and `offset` tensors, TensorRT-LLM's per-request seeds. The host's part stages both before capture and
before every replay. The graph's part hashes them and picks a token by weight. All of it is in integers, so that any two devices
agree.

- `weights`: `[bucket, vocab]`, int32, may be a strided view. A token without weight is never drawn; every row has one with.
- `seeds`: `[bucket]`, int64, pinned, from 0 to 2**62. `positions`: `[bucket]`, int64, pinned. Both are stale from `live` on.
- `greedy`: `[bucket]`, bool: these requests get their heaviest token. `greedy_cpu`: the host's copy, unseen by a graph.
- `live` (host, int32 `[]`): how many rows are real.
- `seed_buf`, `position_buf`: `[bucket + spare]`, int64, persistent. The host writes the bucket's rows: padded ones get seed -1,
  which is no request, and position 0. Rows behind the bucket belong to larger buckets.
- returns `draws` `[bucket]`, int64: 32 random bits for each request, 0 where none are needed (greedy, padding); `tokens`
  `[bucket]`, int64, -1 for padding; and both buffers, whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Mode, TwoPart, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target

Tensors = dict[str, torch.Tensor]

_32_BITS = 0xFFFFFFFF
_MULTIPLIER = 0x21F0AAAD  # odd, and below 2**31: a product of 32 bits stays within int64
_STALE_SEED, _STALE_POSITION = 4242, 99


def prepare(
    mode: Mode,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    live: torch.Tensor,
    seed_buf: torch.Tensor,
    position_buf: torch.Tensor,
    **others: Any,
) -> None:
    rows, bucket = int(live), seeds.numel()
    seed_buf[:rows].copy_(seeds[:rows], non_blocking=True)
    seed_buf[rows:bucket].fill_(-1)
    position_buf[:rows].copy_(positions[:rows], non_blocking=True)
    position_buf[rows:bucket].zero_()


def body(
    prepared: None,
    weights: torch.Tensor,
    greedy: torch.Tensor,
    seed_buf: torch.Tensor,
    position_buf: torch.Tensor,
    **others: Any,
) -> Tensors:
    bucket = greedy.numel()
    seeds, positions = seed_buf[:bucket], position_buf[:bucket]
    is_padding = seeds < 0
    draws = random_bits(seeds, positions).masked_fill(greedy | is_padding, 0)
    tokens = torch.where(greedy, weights.argmax(1), by_weight(weights, draws)).masked_fill(is_padding, -1)
    return {"draws": draws, "tokens": tokens, "seeds": seed_buf, "positions": position_buf}


def random_bits(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """32 bits of each seed and position, in int64."""
    state = mixed(seeds & _32_BITS, seeds >> 32)
    return mixed(mixed(state, positions), positions >> 32)


def mixed(state: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    """The next state of the hash, of 32 bits of `word`."""
    product = (((state ^ word) & _32_BITS) * _MULTIPLIER + 1) & _32_BITS
    return product ^ (product >> 15)


def by_weight(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token in whose share of the weights each draw lies."""
    upto = weights.cumsum(1)
    return (upto <= (draws % upto[:, -1]).unsqueeze(1)).sum(1)


def reference(
    weights: np.ndarray,
    seeds: np.ndarray,
    positions: np.ndarray,
    greedy: np.ndarray,
    greedy_cpu: np.ndarray,
    live: np.ndarray,
    seed_buf: np.ndarray,
    position_buf: np.ndarray,
) -> dict[str, np.ndarray]:
    """Request by request, in Python's integers."""
    bucket = len(seeds)
    draws, tokens = np.zeros(bucket, np.int64), np.full(bucket, -1, np.int64)
    seed_out, position_out = seed_buf.copy(), position_buf.copy()
    seed_out[:bucket], position_out[:bucket] = -1, 0
    for row in range(int(live)):
        seed, position = int(seeds[row]), int(positions[row])
        seed_out[row], position_out[row] = seed, position
        own = weights[row].tolist()
        if greedy[row]:
            tokens[row] = own.index(max(own))
            continue
        state = seed % 2**32
        for word in (seed // 2**32, position % 2**32, position // 2**32):
            state = ((state ^ word) * _MULTIPLIER + 1) % 2**32
            state ^= state // 2**15
        draws[row] = state
        left = state % sum(own)
        while left >= own[tokens[row] + 1]:
            tokens[row] += 1
            left -= own[tokens[row]]
        tokens[row] += 1
    return {"draws": draws, "tokens": tokens, "seeds": seed_out, "positions": position_out}


def build(case: Case) -> Sequence[Feed]:
    """A step's rows are its seeds; positions and weights are made of them. Every step is of other requests."""
    values = case.values
    vocab, spare = _int(values["vocab"]), _int(values["spare"])
    high = values["seeds"] == "high"
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps, 1):
        rows, flags, live = step["seed"], step["greedy"], _int(step["live"])
        assert isinstance(rows, list) and isinstance(flags, list)
        seeds = 1000 * np.array(rows, np.int64) + number
        positions = np.array(rows, np.int64) % 50 + 10 * number
        if high:
            seeds, positions = seeds + (2**41 + 2**61), positions + 2**33
        row, token = np.arange(len(rows)).reshape(-1, 1), np.arange(vocab)
        weights = (row * 3 + token * 5 + number) % 4
        weights[np.arange(len(rows)), (np.arange(len(rows)) + number) % vocab] = 7  # one is heaviest: which of two is not said
        weights *= 2**27 if values["weights"] == "large" else 1
        greedy = np.array(flags, bool)
        seeds[live:], positions[live:], greedy[live:] = _STALE_SEED, _STALE_POSITION, False
        feeds.append(
            {
                "weights": Argument(weights.astype(np.int32), LAYOUTS[str(values["layout"])]),
                "seeds": Argument(seeds, space=Space.PINNED),
                "positions": Argument(positions, space=Space.PINNED),
                "greedy": Argument(greedy),
                "greedy_cpu": Argument(greedy, space=Space.HOST),
                "live": Argument(np.array(live, np.int32), space=Space.HOST),
                "seed_buf": Argument(np.full(len(rows) + spare, _STALE_SEED + 1)),
                "position_buf": Argument(np.full(len(rows) + spare, _STALE_POSITION + 1)),
            }
        )
    return feeds


def _int(value: Any) -> int:
    assert isinstance(value, int)
    return value


TARGET = Target(
    name="sampling_step",
    summary="a token a request from seeds and positions that the host stages for the graph (vLLM, FlashInfer, TensorRT-LLM)",
    implementation=TwoPart(prepare, body),
    reference=reference,
    fixed=(
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("seeds", ("low", "high")),
        ChoiceAxis("weights", ("small", "large")),
        IntAxis("vocab", simplest=1, most=512, common=(1, 2, 8, 33)),
        IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
    ),
    stepped=(RowsAxis("seed", most=2**30), RowsAxis("greedy", most=1), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------

_BY_ROW = ("weights", "seeds", "positions", "greedy", "greedy_cpu")


@TARGET.law
def draws_do_not_depend_on_the_batch(call: LawCall) -> str | None:
    """The live requests alone, in another order, are given the same draws and tokens."""
    live = int(call.inputs["live"])
    alone = call.answer({**call.inputs, **{name: call.inputs[name][:live][::-1].copy() for name in _BY_ROW}})
    for name in ("draws", "tokens"):
        if not np.array_equal(alone[name][::-1], call.outputs[name][:live]):
            return f"{name} are {call.outputs[name][:live].tolist()}, in another batch {alone[name][::-1].tolist()}"
    return None


@TARGET.law
def tokens_have_weight(call: LawCall) -> str | None:
    """No token is drawn that has no weight."""
    live, tokens = int(call.inputs["live"]), call.outputs["tokens"]
    held = call.inputs["weights"][np.arange(live), tokens[:live]]
    return None if (held > 0).all() else f"tokens are {tokens.tolist()}, of weights {held.tolist()}"


@TARGET.law
def the_next_position_draws_anew(call: LawCall) -> str | None:
    """One position later, a request that is not greedy has another draw."""
    live = int(call.inputs["live"])
    later = call.answer({**call.inputs, "positions": call.inputs["positions"] + 1})["draws"][:live]
    same = (later == call.outputs["draws"][:live]) & ~call.inputs["greedy"][:live]
    return f"rows {np.flatnonzero(same).tolist()} are drawn again: {later.tolist()}" if same.any() else None


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


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/kekzl/imp/pull/2013")
@in_body
def positions_of_capture(prepared: None, positions: torch.Tensor, live: torch.Tensor, **others: Any) -> Tensors:
    """Takes the positions from the host: every replay draws as if it were the step of the capture."""
    rows = int(live)
    own = torch.zeros(positions.numel(), dtype=torch.int64)
    own[:rows] = positions[:rows]
    staged = own.pin_memory().to(others["seed_buf"].device, non_blocking=True)
    out = body(prepared, **{**others, "position_buf": staged})
    return {**out, "positions": others["position_buf"]}


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/NVIDIA/Megatron-LM/pull/5697")
@in_prepare
def stages_for_capture_only(mode: Mode, **arguments: Any) -> None:
    """Stages seeds and positions for the capture, and not again before a replay."""
    if mode is not Mode.REPLAY:
        prepare(mode, **arguments)


def _staged_anew(mode: Mode, seed_buf: torch.Tensor, **others: Any) -> torch.Tensor:
    prepare(mode, seed_buf=seed_buf, **others)
    return seed_buf.clone()


def fresh_seeds(prepared: torch.Tensor, **arguments: Any) -> Tensors:
    """Every preparation makes a new tensor of seeds; the graph reads the first, which is gone."""
    out = body(None, **{**arguments, "seed_buf": prepared})
    return {**out, "seeds": arguments["seed_buf"]}


TARGET.variant(Verdict.DANGLING_BUFFER, source="https://github.com/alibaba/rtp-llm/pull/1259")(
    TwoPart(_staged_anew, fresh_seeds)
)


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "https://github.com/NVIDIA/TensorRT-LLM/pull/17172")
@in_prepare
def capture_advances(mode: Mode, **arguments: Any) -> None:
    """Counts the capture as a step: the host's positions have advanced before anything was drawn."""
    prepare(mode, **arguments)
    if mode is Mode.CAPTURE:
        arguments["positions"].add_(1)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "vLLM's all_greedy, asked of the host while capturing")
@in_body
def branches_on_greedy(prepared: None, **arguments: Any) -> Tensors:
    """Draws nothing where the host knows of no request that needs it: captured with a greedy batch, it never will."""
    out = body(prepared, **arguments)
    if bool(arguments["greedy_cpu"][: int(arguments["live"])].all()):
        tokens = arguments["weights"].argmax(1).masked_fill(arguments["seed_buf"][: out["draws"].numel()] < 0, -1)
        return {**out, "draws": torch.zeros_like(out["draws"]), "tokens": tokens}
    return out


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "FlashInfer's get_seed_and_offset, called for the graph to have them")
@in_body
def reads_a_seed(prepared: None, **arguments: Any) -> Tensors:
    """Asks the device for the sum of the seeds, to seed a generator."""
    torch.Generator().manual_seed(int(arguments["seed_buf"].sum()) % 2**31)
    return body(prepared, **arguments)


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/pytorch/pytorch/pull/172156")
@in_body
def seeds_of_a_list(prepared: None, seeds: torch.Tensor, **others: Any) -> Tensors:
    """Makes the seeds a tensor once more where they are used, of a list."""
    seed_buf = others["seed_buf"]
    own = torch.tensor([*seeds.tolist(), *[0] * (seed_buf.numel() - seeds.numel())], dtype=torch.int64, device=seed_buf.device)
    return {**body(prepared, **{**others, "seed_buf": torch.where(seed_buf < 0, seed_buf, own)}), "seeds": seed_buf}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="https://github.com/vllm-project/vllm/pull/39773")
@in_prepare
def stages_the_whole_bucket(mode: Mode, **arguments: Any) -> None:
    """Stages padded rows too: requests that are gone go on drawing."""
    bucket = arguments["seeds"].numel()
    prepare(mode, **arguments)
    arguments["seed_buf"][:bucket].copy_(arguments["seeds"], non_blocking=True)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F9: int32 narrowing")
@in_body
def seeds_of_32_bits(prepared: None, seed_buf: torch.Tensor, **others: Any) -> Tensors:
    """Takes seeds for int32: those that differ above draw the same."""
    narrow = seed_buf.to(torch.int32).to(torch.int64)
    return {**body(prepared, seed_buf=torch.where(seed_buf < 0, seed_buf, narrow & _32_BITS), **others), "seeds": seed_buf}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="https://github.com/kekzl/imp/pull/2013")
@in_body
def one_draw_for_ever(prepared: None, position_buf: torch.Tensor, **others: Any) -> Tensors:
    """Leaves the position out: a request has one draw for all of its tokens."""
    return {**body(prepared, position_buf=torch.zeros_like(position_buf), **others), "positions": position_buf}
