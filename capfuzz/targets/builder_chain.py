"""A chain of attention builders over one metadata object: how `metadata_builders` stages, builds and captures.

vLLM's protocol around a full graph (`_prepare_inputs`, `build_for_cudagraph_capture`, `split_decodes_and_prefills`). What the
builders share is one `CommonMetadata`, of which each gets a shallow copy: the same tensors.

The builders, called in `order`; the host's offsets are for all of them to read and for none to write:

- `unified` (ROCm and Triton attention) keeps the shared buffers;
- `indexer` (MiniMax-M3, MLA) splits decodes from prefills by the host's offsets, and copies the lengths;
- `gdn` takes the speculative branch if the host's offsets say that a request has tokens, and copies the query lengths.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from capfuzz.differential import Mode

Tensors = dict[str, torch.Tensor]
Built = dict[str, Any]
"""What one builder hands to its kernels, and under `clobbers` which shared device fields it overwrites for a capture."""


@dataclasses.dataclass
class CommonMetadata:
    """What the builders share. A shallow copy has the same tensors."""

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    is_prefilling: torch.Tensor
    num_tokens: int
    query_len: int


Builder = Callable[[CommonMetadata, Mapping[str, Any], bool], Built]
Share = Callable[[CommonMetadata], CommonMetadata]


# -- staging -----------------------------------------------------------------------------------------------------------


def stage(inputs: Mapping[str, Any]) -> CommonMetadata:
    """The live batch, padded to the bucket."""
    live, columns, offsets = int(inputs["live"]), int(inputs["columns"]), inputs["query_start_loc_cpu"]
    tokens = int(offsets[live])
    staged = query_start_loc, seq_lens, block_table, slots = buffers(inputs)
    query_start_loc.copy_(offsets, non_blocking=True)
    seq_lens.fill_(inputs["seq_pad"])
    seq_lens[:live].copy_(inputs["new_seq_lens"][:live])
    block_table[:live, :columns].copy_(inputs["new_block_table"][:live, :columns])
    block_table[live:].zero_()
    slots.fill_(-1)  # behind the last real token, not behind the last of the bucket
    slots[:tokens].copy_(inputs["new_slots"][:tokens])
    return common_of(staged, offsets, inputs["is_prefilling"], tokens, inputs["query_len"])


def stage_dummy(inputs: Mapping[str, Any], offsets: torch.Tensor) -> CommonMetadata:
    """A batch of full requests, for the capture."""
    staged = query_start_loc, seq_lens, block_table, slots = buffers(inputs)
    query_start_loc.copy_(offsets)
    seq_lens.fill_(inputs["query_len"])
    block_table.zero_()
    slots.fill_(-1)
    is_prefilling = torch.zeros(seq_lens.numel(), dtype=torch.bool)
    return common_of(staged, offsets, is_prefilling, slots.numel(), inputs["query_len"])


def buffers(inputs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    return inputs["query_start_loc"], inputs["seq_lens"], inputs["block_table"], inputs["slots"]


def common_of(
    staged: tuple[torch.Tensor, ...], offsets: torch.Tensor, is_prefilling: torch.Tensor, tokens: int, query_len: int
) -> CommonMetadata:
    query_start_loc, seq_lens, block_table, slots = staged
    return CommonMetadata(query_start_loc, offsets, seq_lens, block_table, slots, is_prefilling, tokens, query_len)


def dummy_offsets(inputs: Mapping[str, Any]) -> torch.Tensor:
    query_len: int = inputs["query_len"]
    return torch.arange(inputs["seq_lens"].numel() + 1, dtype=torch.int32) * query_len


# -- builders ----------------------------------------------------------------------------------------------------------


def unified(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    if is_capture:
        common.seq_lens.fill_(1)
        common.query_start_loc.zero_()
    kept = {name: getattr(common, name) for name in ("query_start_loc", "seq_lens", "block_table", "slots")}
    return {**kept, "clobbers": "query_start_loc seq_lens"}


def indexer(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    longest = int(np.diff(common.query_start_loc_cpu.numpy()).max(initial=0))
    assert longest > 0 or common.num_tokens == 0, "the longest query of a batch with tokens has none"
    split = split_decodes_and_prefills(common, inputs["threshold"], inputs["uniform"], inputs["short_are_decodes"])
    inputs["split"].copy_(torch.tensor(split, dtype=torch.int32))
    inputs["indexer_lens"].copy_(common.seq_lens)
    return {"split": inputs["split"], "lens": inputs["indexer_lens"], "clobbers": ""}


def split_decodes_and_prefills(
    common: CommonMetadata, threshold: int, uniform: bool, short_are_decodes: bool
) -> tuple[int, int, int, int]:
    """Decodes, prefills, decode tokens, prefill tokens: the batch is cut in front of the first prefill."""
    offsets, tokens = common.query_start_loc_cpu.numpy(), common.num_tokens
    requests = len(offsets) - 1
    everything = requests, 0, tokens, 0
    if requests == 0 or (common.query_len <= threshold and (not uniform or threshold <= 1) and short_are_decodes):
        return everything
    lens = np.diff(offsets)
    if lens[0] > threshold:
        return 0, requests, 0, tokens
    # With `uniform`, decodes have one length; padded rows are decodes of none.
    is_prefill = (lens != lens[0]) & (lens != 0) if uniform else lens > threshold
    if not short_are_decodes:  # the end of a prompt may be as short as a decode
        is_prefill = is_prefill | common.is_prefilling.numpy()
    if not is_prefill.any():
        return everything
    first = int(is_prefill.argmax())
    return first, requests - first, int(offsets[first]), tokens - int(offsets[first])


def gdn(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    drafts = np.diff(common.query_start_loc_cpu.numpy()) - 1
    # An empty batch runs the graph of the bucket that it is padded to, whichever that is.
    is_speculative = common.query_len > 1 and (common.num_tokens == 0 or bool((drafts >= 0).any()))
    torch.sub(common.query_start_loc[1:], common.query_start_loc[:-1], out=inputs["gdn_lens"])
    width = common.query_len if is_speculative else 1
    return {"query_start_loc": common.query_start_loc, "lens": inputs["gdn_lens"], "width": width, "clobbers": ""}


# -- the two parts -----------------------------------------------------------------------------------------------------


def prepare(mode: Mode, **inputs: Any) -> dict[str, Built]:
    return build_all(mode, {"unified": unified, "indexer": indexer, "gdn": gdn}, inputs)


def build_all(
    mode: Mode, builders: Mapping[str, Builder], inputs: Mapping[str, Any], share: Share = copy.copy
) -> dict[str, Built]:
    """What each builder of the order has built, and under `common` what they shared. Each is given what `share` makes of it."""

    def in_order(common: CommonMetadata, is_capture: bool) -> dict[str, Built]:
        built = {name: builders[name](share(common), inputs, is_capture) for name in inputs["order"].split(",")}
        return {**built, "common": vars(common)}

    if mode is not Mode.CAPTURE and inputs["path"] != "capture":
        return in_order(stage(inputs), is_capture=False)
    offsets = dummy_offsets(inputs)
    if mode is Mode.CAPTURE:
        in_order(stage_dummy(inputs, offsets), is_capture=True)  # to warm up
    return in_order(stage_dummy(inputs, offsets), is_capture=True)


def metadata_builders(built: dict[str, Built], **inputs: Any) -> dict[str, Any]:
    """What is captured: what each builder's kernels make of it."""
    kernels = {"unified": attend, "indexer": index, "gdn": delta}
    out: dict[str, Any] = {name: kernels[name](built[name]) for name in inputs["order"].split(",")}
    if inputs["path"] != "by_mode":
        out["clobbers"] = {name: built[name]["clobbers"] for name in out}
        out["query_start_loc_cpu"] = built["common"]["query_start_loc_cpu"]
    return out


def attend(built: Built) -> Tensors:
    """What it has kept, and the tokens that each request had before."""
    context = built["seq_lens"] - torch.diff(built["query_start_loc"])
    return {name: value for name, value in built.items() if name != "clobbers"} | {"context_lens": context}


def index(built: Built) -> Tensors:
    """The lengths of the decodes."""
    rows = torch.arange(built["lens"].numel(), device=built["lens"].device)
    return {"split": built["split"], "decode_lens": built["lens"].masked_fill(rows >= built["split"][:1], 0)}


def delta(built: Built) -> Tensors:
    """The tokens of each request, -1 where there is none."""
    columns = torch.arange(built["width"], device=built["lens"].device)
    tokens = built["query_start_loc"][:-1, None] + columns
    return {"lens": built["lens"], "tokens": tokens.masked_fill(columns >= built["lens"][:, None], -1)}
