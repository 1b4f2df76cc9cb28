"""`kv_cache_write(...)`: keys and values of a step go into the paged cache, each token at its slot; padded slots write nothing.

vLLM's `reshape_and_cache` and `reshape_and_cache_flash`, SGLang's `set_kv_buffer`, without their kernels.

- `key`, `value`: `[bucket, heads, dim]`, float32 or float16, may be strided views. Padded tokens hold huge numbers.
- `key_cache`, `value_cache`: state, same dtype. `NHD`: `[blocks, block_size, heads, dim]`; `HND` (FlashInfer):
  `[blocks, heads, block_size, dim]`. Contiguous. Written in place, and nothing else of them may change.
- `slots`: `[bucket]`, int32 or int64, on the device: `block * block_size + offset`, each at most once but for padding.
- `slots_cpu`: the host's copy, which a graph does not see.
- `cache_layout` (host): `NHD` or `HND`.
- `padding` (host): the slot of a padded token. `minus_one` (vLLM's `PAD_SLOT_ID`): it is -1, all blocks are live, and nothing
  is written. `null_block` (SGLang, LMDeploy): it is 0; block 0 belongs to nobody, and its first slot gets zeros, so that what
  a kernel reads there is finite.
- returns `key_cache` and `value_cache`.

Padded tokens may be anywhere in the bucket. Two calls are not one call: the cache is not filled anew between replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis.strategies import SearchStrategy

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, FixedAxis, IntAxis, RowsAxis, StepAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.generate import cases_of
from capfuzz.targets.model import Target

Tensors = dict[str, torch.Tensor]

_PADDING = {"minus_one": -1, "null_block": 0}
_GARBAGE = 3e4  # what padded tokens hold: finite in float16, and nothing that a live token has


def kv_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    slots_cpu: torch.Tensor,
    cache_layout: str,
    padding: str,
) -> Tensors:
    if slots.numel():
        is_live = is_real(slots, padding)
        write(key_cache, key, slots, is_live, cache_layout, padding)
        write(value_cache, value, slots, is_live, cache_layout, padding)
    return {"key_cache": key_cache, "value_cache": value_cache}


def is_real(slots: torch.Tensor, padding: str) -> torch.Tensor:
    return slots > 0 if padding == "null_block" else slots >= 0


def write(
    cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, is_live: torch.Tensor, cache_layout: str, padding: str
) -> None:
    pages = cache if cache_layout == "NHD" else cache.transpose(1, 2)
    if padding == "null_block":
        store(pages, slots, rows.masked_fill(~is_live[:, None, None], 0))
        return
    # The number of writes is fixed. A padded token repeats the first live one's, which changes nothing; where none is live,
    # all are at -1, and write what the last slot holds.
    source = torch.where(is_live, torch.arange(slots.numel(), device=slots.device), is_live.to(torch.uint8).argmax())
    written = slots[source]
    kept = pages[written // pages.shape[1], written % pages.shape[1]]
    store(pages, written, torch.where(is_live.any(), rows[source], kept))


def store(pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """`pages` is `[blocks, block_size, heads, dim]`, a view of the cache."""
    pages[slots // pages.shape[1], slots % pages.shape[1]] = rows


def reference(
    key: np.ndarray,
    value: np.ndarray,
    key_cache: np.ndarray,
    value_cache: np.ndarray,
    slots: np.ndarray,
    slots_cpu: np.ndarray,
    cache_layout: str,
    padding: str,
) -> dict[str, np.ndarray]:
    """Token by token."""
    out = {"key_cache": key_cache.copy(), "value_cache": value_cache.copy()}
    for name, rows in (("key_cache", key), ("value_cache", value)):
        size = out[name].shape[1 if cache_layout == "NHD" else 2]
        for token, slot in enumerate(slots.tolist()):
            is_padding = slot == _PADDING[padding]
            if is_padding and padding == "minus_one":
                continue
            block, offset = divmod(slot, size)
            at = (block, offset) if cache_layout == "NHD" else (block, slice(None), offset)
            out[name][at] = 0 if is_padding else rows[token]
    return out


def build(case: Case) -> Sequence[Feed]:
    """Request r owns one block, another in each step; its row says at which offset its token goes, or that it has none."""
    values = case.values
    size, heads, dim = (_int(values[name]) for name in ("block_size", "heads", "dim"))
    dtype, layout = np.dtype(str(values["dtype"])), LAYOUTS[str(values["layout"])]
    padding, cache_layout = str(values["padding"]), str(values["cache_layout"])
    first = int(padding == "null_block")
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        positions, live = step["positions"], _int(step["live"])
        assert isinstance(positions, list)
        batch = len(positions)
        # The last padded token comes first: no rule says where in a batch they are.
        is_real = np.arange(batch) < live if number % 2 == 0 else np.arange(batch) >= batch - live
        blocks = first + (np.arange(batch) + number) % max(batch, 1)
        slots = np.where(is_real, blocks * size + np.array(positions, np.int64) % size, _PADDING[padding])
        slots = slots.astype(str(values["index_dtype"]))
        shape = (max(first + batch, 1), size, heads, dim)
        cells = np.arange(batch * heads * dim).reshape(batch, heads, dim) % 251
        rows = np.where(is_real[:, None, None], 256 * (number + 1) + cells, _GARBAGE)
        old = -1 - (np.arange(np.prod(shape)).reshape(shape) % 241)
        if cache_layout == "HND":
            old = np.ascontiguousarray(old.swapaxes(1, 2))
        feeds.append(
            {
                "key": Argument(rows.astype(dtype), layout),
                "value": Argument((rows / 2).astype(dtype), layout),
                "key_cache": Argument(old.astype(dtype), is_state=True),
                "value_cache": Argument((old / 2).astype(dtype), is_state=True),
                "slots": Argument(slots),
                "slots_cpu": Argument(slots, space=Space.HOST),
                "cache_layout": cache_layout,
                "padding": padding,
            }
        )
    return feeds


def _int(value: Any) -> int:
    assert isinstance(value, int)
    return value


FIXED: tuple[FixedAxis, ...] = (
    ChoiceAxis("dtype", ("float32", "float16")),
    ChoiceAxis("index_dtype", ("int64", "int32")),
    ChoiceAxis("layout", tuple(LAYOUTS)),
    ChoiceAxis("padding", tuple(_PADDING)),
    ChoiceAxis("cache_layout", ("NHD", "HND")),
    IntAxis("block_size", simplest=1, most=64, common=(1, 2, 16)),
    IntAxis("heads", simplest=1, most=8, common=(1, 2)),
    IntAxis("dim", simplest=1, most=64, common=(1, 4)),
)
STEPPED: tuple[StepAxis, ...] = (RowsAxis("positions", most=2**20), StepIntAxis("live", up_to_batch=True))


def strategy() -> SearchStrategy[Case]:
    """The axes' own way, with two changes at most: every step goes on from what the one before has left."""
    return cases_of(FIXED, STEPPED).map(lambda case: case.with_steps(case.steps[:3]))


TARGET = Target(
    name="kv_cache_write",
    summary="keys and values into the paged cache at their slots; padded slots write nothing (vLLM, SGLang, FlashInfer)",
    implementation=kv_cache_write,
    reference=reference,
    fixed=FIXED,
    stepped=STEPPED,
    draw=strategy,
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------


@TARGET.law
def padding_writes_nothing(call: LawCall) -> str | None:
    """The cache is that which the live tokens alone leave, behind the null block."""
    is_live = call.inputs["slots"] != _PADDING[call.inputs["padding"]]
    first = int(call.inputs["padding"] == "null_block")
    alone = call.answer(
        {**call.inputs, **{name: call.inputs[name][is_live].copy() for name in ("key", "value", "slots", "slots_cpu")}}
    )
    for name, cache in alone.items():
        if not np.array_equal(call.outputs[name][first:], cache[first:]):
            return f"padded tokens change {name}: {call.outputs[name].tolist()}, without them {cache.tolist()}"
    return None


@TARGET.law
def only_slots_change(call: LawCall) -> str | None:
    """No more slots change than there are tokens."""
    for name, cache in call.outputs.items():
        pages = cache if call.inputs["cache_layout"] == "NHD" else cache.swapaxes(1, 2)
        before = call.inputs[name] if call.inputs["cache_layout"] == "NHD" else call.inputs[name].swapaxes(1, 2)
        changed = int((pages != before).any(axis=(2, 3)).sum())
        if changed > len(np.unique(call.inputs["slots"])):
            return f"{changed} slots of {name} changed for {len(call.inputs['slots'])} tokens"
    return None


# -- faulty variants ---------------------------------------------------------------------------------------------------


def _pages(cache: torch.Tensor, cache_layout: str) -> torch.Tensor:
    return cache if cache_layout == "NHD" else cache.transpose(1, 2)


def _store_all(slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **others: Any) -> Tensors:
    """Writes every token of the bucket, padded ones too."""
    key_cache, value_cache = others["key_cache"], others["value_cache"]
    store(_pages(key_cache, others["cache_layout"]), slots, key)
    store(_pages(value_cache, others["cache_layout"]), slots, value)
    return {"key_cache": key_cache, "value_cache": value_cache}


def _store_last(slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **others: Any) -> Tensors:
    """Writes the bucket's last token, behind the others: of two writes to one slot by one op, either may be the last."""
    return _store_all(slots[-1:], key[-1:], value[-1:], **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="https://github.com/vllm-project/vllm/issues/43810")
def writes_the_last_slot(slots: torch.Tensor, padding: str, **others: Any) -> Tensors:
    """Indexes with -1, which is the last slot of the last block."""
    out = kv_cache_write(slots=slots, padding=padding, **others)
    return out if padding == "null_block" else _store_last(slots, **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="-1 clamped to 0, which is somebody's; lightseekorg/tokenspeed #700")
def writes_slot_zero(slots: torch.Tensor, padding: str, **others: Any) -> Tensors:
    """Clamps -1 to 0, although block 0 is live."""
    out = kv_cache_write(slots=slots, padding=padding, **others)
    return out if padding == "null_block" else _store_last(slots.clamp(min=0), **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="https://github.com/sgl-project/sglang/pull/32477")
def garbage_in_the_null_block(slots: torch.Tensor, padding: str, **others: Any) -> Tensors:
    """Writes what padded tokens hold to the null block, where kernels read it before they mask it."""
    if padding == "minus_one":
        return kv_cache_write(slots=slots, padding=padding, **others)
    return _store_all(slots, **others)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/pytorch/pytorch/pull/170262")
def selects_live_tokens(slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor, padding: str, **others: Any) -> Tensors:
    """Takes the live tokens with a mask, whose count the host must know."""
    live = slots >= 0
    return kv_cache_write(slots=slots[live], key=key[live], value=value[live], padding=padding, **others)


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/ROCm/aiter/pull/5202")
def scalar_store(**arguments: Any) -> Tensors:
    """Clears the first number of the null block by a scalar store."""
    if arguments["padding"] == "null_block":
        arguments["key_cache"][0, 0, 0, 0] = 0
    return kv_cache_write(**arguments)


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/InfiniTensor/InfiniLM/pull/540")
def slots_of_capture(slots: torch.Tensor, slots_cpu: torch.Tensor, padding: str, **others: Any) -> Tensors:
    """Takes the live tokens' slots from the host: every replay writes where the capture did."""
    least = int(padding == "null_block")
    own = torch.tensor([max(least, slot) for slot in slots_cpu.tolist()], dtype=slots.dtype)
    frozen = torch.where(is_real(slots, padding), own.pin_memory().to(slots.device, non_blocking=True), slots)
    return kv_cache_write(slots=frozen, slots_cpu=slots_cpu, padding=padding, **others)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F3: a fresh tensor where the persistent one is read")
def writes_a_copy(cache_layout: str, **others: Any) -> Tensors:
    """Makes the cache contiguous with the tokens first, which copies it: what is written is lost."""
    if cache_layout == "NHD":
        return kv_cache_write(cache_layout=cache_layout, **others)
    names = ("key_cache", "value_cache")
    flat = {name: others[name].transpose(1, 2).contiguous() for name in names}
    kv_cache_write(cache_layout="NHD", **{**others, **flat})
    return {name: others[name] for name in names}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="https://github.com/xLLM-AI/xllm/pull/932")
def stride_blind(key: torch.Tensor, **others: Any) -> Tensors:
    """Reads the keys as if they were contiguous."""
    dense = torch.as_strided(key, key.shape, (key.shape[1] * key.shape[2], key.shape[2], 1), 0)
    return kv_cache_write(key=dense, **others)
