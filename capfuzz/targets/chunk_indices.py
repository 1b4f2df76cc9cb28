"""`chunk_indices(op, ...)`: how packed sequences are cut into chunks, for chunked linear attention, mamba2 and causal_conv1d.

Three ops, chosen by the host string `op`. All take the same offsets and return a dict; shapes follow from host arguments alone,
so that a graph can be replayed with other lengths.

- `cu_seqlens` `[batch + 1]`, int32 or int64, on the device: where each sequence begins, and where the last one ends. It begins
  with 0 and is flat over padded rows. Sequences may be empty anywhere. It may be a strided view.
- `chunk_size` (host) and `num_chunks` (host): an upper bound of how many chunks there are; slots behind the last get -1.

`indices` (`prepare_chunk_indices` and `prepare_chunk_offsets` of flash-linear-attention, `ops/utils/index.py`): sequence by
sequence, counted from its own beginning.
- returns `chunk_indices` `[num_chunks, 2]`: (sequence, chunk in it), and `chunk_offsets` `[batch + 1]`: the running sum of the
  sequences' chunks. Both have the dtype of `cu_seqlens`. An empty sequence has no chunk and keeps its number.

`mamba2` (`v1/attention/backends/mamba2_attn.py` of vLLM): cuts at the ends of sequences and at the multiples of `chunk_size` on
the packed axis.
- returns, all int32, `cu_chunk_seqlens` `[num_chunks + 1]` (the tail repeats the number of tokens), `last_chunk_indices`
  `[batch]` (-1 for an empty sequence), and `seq_idx` `[num_chunks]`: the sequence of each chunk.

`conv1d` (`compute_causal_conv1d_metadata`, `v1/attention/backends/utils.py` of vLLM): the expansion of `indices` in two arrays.
- `batch_ptr`, `token_chunk_offset_ptr` `[num_chunks]`, int32, persistent: every element is written.
- `cu_seqlens_cpu`: the host's copy of the offsets, in pinned memory. It is for the host's own use: what is made of it in a
  graph stays as it was at capture.
- returns both, and `total` int32 `[1]`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, StepValue
from capfuzz.targets.model import Target

_STALE = 5  # what the persistent buffers hold: the chunks of an earlier batch

Tensors = dict[str, torch.Tensor]


def chunk_indices(op: str, cu_seqlens: torch.Tensor, chunk_size: int, num_chunks: int, **of_conv1d: torch.Tensor) -> Tensors:
    if op == "indices":
        return indices(cu_seqlens, chunk_size, num_chunks)
    if op == "mamba2":
        return mamba2(cu_seqlens, chunk_size, num_chunks)
    return conv1d(cu_seqlens, chunk_size, num_chunks, **of_conv1d)


def expand(cu_seqlens: torch.Tensor, chunk_size: int, num_chunks: int) -> tuple[torch.Tensor, ...]:
    """The offsets of each sequence's chunks; of each slot its sequence, its chunk in it, and whether it is behind the last."""
    dtype = cu_seqlens.dtype
    lengths = torch.diff(cu_seqlens, prepend=cu_seqlens[:1])  # an empty one in front, so that the sums begin with 0
    offsets = torch.cumsum(torch.floor_divide(lengths + (chunk_size - 1), chunk_size), 0, dtype=dtype)
    slots = torch.arange(num_chunks, dtype=dtype, device=cu_seqlens.device)
    row = torch.searchsorted(offsets[1:], slots, right=True, out_int32=dtype == torch.int32)
    return offsets, row, slots - offsets.index_select(0, row), row >= lengths.numel() - 1


def indices(cu_seqlens: torch.Tensor, chunk_size: int, num_chunks: int) -> Tensors:
    offsets, row, chunk, unused = expand(cu_seqlens, chunk_size, num_chunks)
    return {
        "chunk_indices": torch.stack([row, chunk], 1).masked_fill_(unused[:, None], -1),
        "chunk_offsets": offsets,
    }


def mamba2(cu_seqlens: torch.Tensor, chunk_size: int, num_chunks: int) -> Tensors:
    ends = cu_seqlens.to(torch.int32)
    begins = torch.cat([ends[:1], ends[:-1]])  # an empty sequence in front, so that the sums begin with 0
    is_used = ends > begins
    cells = torch.floor_divide(ends + (chunk_size - 1), chunk_size)
    offsets = torch.cumsum((cells - torch.floor_divide(begins, chunk_size)) * is_used, 0, dtype=torch.int32)
    # cut i ends chunk i - 1; cut 0 belongs to the sequence in front, and a cut behind the last one to the last sequence
    cuts = torch.arange(num_chunks + 1, dtype=torch.int32, device=ends.device)
    owner = torch.searchsorted(offsets, cuts, out_int32=True)
    row = owner.clamp_max(ends.numel() - 1)
    multiples = ((cells - offsets).index_select(0, row) + cuts) * chunk_size
    return {
        "cu_chunk_seqlens": torch.minimum(multiples, ends.index_select(0, row)),
        "last_chunk_indices": (offsets * is_used - 1)[1:],
        "seq_idx": (owner - 1).masked_fill_(owner >= ends.numel(), -1)[1:],
    }


def conv1d(
    cu_seqlens: torch.Tensor,
    chunk_size: int,
    num_chunks: int,
    cu_seqlens_cpu: torch.Tensor,
    batch_ptr: torch.Tensor,
    token_chunk_offset_ptr: torch.Tensor,
) -> Tensors:
    offsets, row, chunk, unused = expand(cu_seqlens, chunk_size, num_chunks)
    batch_ptr.copy_(row.masked_fill_(unused, -1))
    token_chunk_offset_ptr.copy_(chunk.masked_fill_(unused, -1))
    return {
        "batch_ptr": batch_ptr,
        "token_chunk_offset_ptr": token_chunk_offset_ptr,
        "total": offsets[-1:].to(torch.int32),
    }


def reference(
    op: str, cu_seqlens: np.ndarray, chunk_size: int, num_chunks: int, **of_conv1d: np.ndarray
) -> dict[str, np.ndarray]:
    """Sequence by sequence and chunk by chunk."""
    sequences = list(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True))
    if op == "mamba2":
        return _mamba2(sequences, chunk_size, num_chunks)
    rows, chunks, offsets = list[int](), list[int](), [0]
    for row, (begin, end) in enumerate(sequences):
        chunks += range(len(range(begin, end, chunk_size)))
        rows += [row] * (len(chunks) - len(rows))
        offsets.append(len(rows))
    total, spare = len(rows), [-1] * (num_chunks - len(rows))
    if op == "indices":
        padded = np.array([rows + spare, chunks + spare], cu_seqlens.dtype)
        return {"chunk_indices": padded.T, "chunk_offsets": np.array(offsets, cu_seqlens.dtype)}
    first, second = np.array(rows + spare, np.int32), np.array(chunks + spare, np.int32)
    return {"batch_ptr": first, "token_chunk_offset_ptr": second, "total": np.array([total], np.int32)}


def _mamba2(sequences: list[tuple[int, int]], chunk_size: int, num_chunks: int) -> dict[str, np.ndarray]:
    ends, owners, last = [0], list[int](), list[int]()
    for row, (begin, end) in enumerate(sequences):
        if begin < end:
            ends += [*range(begin - begin % chunk_size + chunk_size, end, chunk_size), end]
            owners += [row] * (len(ends) - 1 - len(owners))
        last.append(len(owners) - 1 if begin < end else -1)
    spare = num_chunks - len(owners)
    return {
        "cu_chunk_seqlens": np.array(ends + ends[-1:] * spare, np.int32),
        "last_chunk_indices": np.array(last, np.int32),
        "seq_idx": np.array(owners + [-1] * spare, np.int32),
    }


def build(case: Case) -> Sequence[Feed]:
    values = case.values
    op, dtype, layout = str(values["op"]), np.dtype(str(values["dtype"])), LAYOUTS[str(values["layout"])]
    size, spare = _int(values["chunk_size"]), _int(values["spare"])
    offsets = [_offsets(step, dtype) for step in case.steps]
    num_chunks = spare + max(_count(cu, size, op == "mamba2") for cu in offsets)
    feeds: list[Feed] = []
    for cu in offsets:
        feed: dict[str, Any] = {
            "op": op,
            "cu_seqlens": Argument(cu, layout),
            "chunk_size": size,
            "num_chunks": num_chunks,
        }
        if op == "conv1d":
            feed["cu_seqlens_cpu"] = Argument(cu, space=Space.PINNED)
            feed["batch_ptr"] = Argument(np.full(num_chunks, _STALE, np.int32))
            feed["token_chunk_offset_ptr"] = Argument(np.full(num_chunks, _STALE, np.int32))
        feeds.append(feed)
    return feeds


def _int(value: StepValue | str) -> int:
    assert isinstance(value, int)
    return value


def _offsets(step: Mapping[str, StepValue], dtype: np.dtype) -> np.ndarray:
    rows, live = step["lens"], _int(step["live"])
    assert isinstance(rows, list)
    return np.cumsum([0, *rows[:live], *[0] * (len(rows) - live)], dtype=dtype)


def _count(cu: np.ndarray, size: int, on_grid: bool) -> int:
    """How many chunks there are."""
    if not on_grid:
        return int((-(-np.diff(cu) // size)).sum())
    return max(0, len({*cu.tolist(), *range(0, int(cu[-1]), size)}) - 1)


TARGET = Target(
    name="chunk_indices",
    summary="chunks of packed sequences: flash-linear-attention's indices, mamba2's varlen chunks, causal_conv1d's metadata",
    implementation=chunk_indices,
    reference=reference,
    fixed=(
        ChoiceAxis("op", ("indices", "mamba2", "conv1d")),
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        IntAxis("chunk_size", simplest=1, most=1024, common=(1, 2, 8, 16, 64)),
        IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
    ),
    stepped=(RowsAxis("lens", most=1024, total=2048), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """Empty sequences at the end change nothing: the chunks are those of the others alone."""
    if call.inputs["op"] == "conv1d":  # it is `indices`, says another law
        return None
    cu = call.inputs["cu_seqlens"]
    rows = int(np.searchsorted(cu, cu[-1]))
    alone = call.answer({**call.inputs, "cu_seqlens": cu[: rows + 1].copy()})
    for name, value in alone.items():
        if not np.array_equal(call.outputs[name][: len(value)], value):
            return f"{name} is {call.outputs[name][: len(value)].tolist()}, without padding it is {value.tolist()}"
    return None


@TARGET.law
def offsets_count_the_chunks(call: LawCall) -> str | None:
    """`chunk_offsets` is the running histogram of the sequences in `chunk_indices`."""
    if call.inputs["op"] != "indices":
        return None
    rows, offsets = call.outputs["chunk_indices"][:, 0], call.outputs["chunk_offsets"]
    counted = np.bincount(rows[rows >= 0], minlength=len(offsets) - 1)
    return None if np.array_equal(counted, np.diff(offsets)) else f"{counted.tolist()} chunks, offsets {offsets.tolist()}"


@TARGET.law
def conv1d_is_indices(call: LawCall) -> str | None:
    """The metadata of causal_conv1d is the expansion of `indices`, column by column."""
    if call.inputs["op"] != "conv1d":
        return None
    kept = {name: value for name, value in call.inputs.items() if not name.endswith(("_ptr", "_cpu"))}
    pairs = call.answer({**kept, "op": "indices"})["chunk_indices"]
    both = np.stack([call.outputs["batch_ptr"], call.outputs["token_chunk_offset_ptr"]], 1)
    return None if np.array_equal(both, pairs) else f"{both.tolist()} is not {pairs.tolist()}"


@TARGET.law
def cuts_are_ends_and_multiples(call: LawCall) -> str | None:
    """mamba2 cuts where a sequence ends and at every multiple of the chunk size, and nowhere else."""
    if call.inputs["op"] != "mamba2":
        return None
    cu, size = call.inputs["cu_seqlens"], call.inputs["chunk_size"]
    wanted = {*cu.tolist(), *range(0, int(cu[-1]), size)}
    cuts = set(call.outputs["cu_chunk_seqlens"].tolist())
    return None if cuts == wanted else f"cuts {sorted(cuts ^ wanted)} are too many or missing"


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F17: prepare_chunk_indices of flash-linear-attention")
def counts_zeros(op: str, **arguments: Any) -> Tensors:
    """Numbers the sequences by counting first chunks: behind an empty sequence every number is too low."""
    out = chunk_indices(op, **arguments)
    if op != "mamba2":
        chunk = out["chunk_indices"][:, 1] if op == "indices" else out["token_chunk_offset_ptr"]
        number = out["chunk_indices"][:, 0] if op == "indices" else out["batch_ptr"]
        number.copy_(torch.where(chunk < 0, -1, torch.cumsum(chunk == 0, 0) - 1))
    return out


@functools.lru_cache(maxsize=4)
def _cached(cu_seqlens: torch.Tensor, chunk_size: int, num_chunks: int) -> Tensors:
    return indices(cu_seqlens, chunk_size, num_chunks)


@TARGET.variant(
    Verdict.DIVERGENCE, "stale_host_value", "fault class F10; https://github.com/fla-org/flash-linear-attention/pull/1212"
)
def tensor_cache(op: str, **arguments: Any) -> Tensors:
    """Keeps the answer for the same tensor object, whose contents have changed."""
    if op != "indices":
        return chunk_indices(op, **arguments)
    return _cached(arguments["cu_seqlens"], arguments["chunk_size"], arguments["num_chunks"])


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F2: flash-linear-attention's counts.tolist()")
def counts_on_the_host(op: str, **arguments: Any) -> Tensors:
    """Makes the chunks from a list of the counts, which the host must read."""
    out = chunk_indices(op, **arguments)
    if op == "indices":
        counts = torch.diff(out["chunk_offsets"]).tolist()
        pairs = [(row, chunk) for row, count in enumerate(counts) for chunk in range(count)]
        pairs += [(-1, -1)] * (arguments["num_chunks"] - len(pairs))
        listed = torch.tensor(pairs, dtype=out["chunk_indices"].dtype).reshape(-1, 2)
        out["chunk_indices"] = listed.to(out["chunk_indices"].device)
    return out


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: aiter's causal_conv1d_prefill, no output_size")
def no_output_size(op: str, **arguments: Any) -> Tensors:
    """Repeats every sequence's number by its chunks, and lets the device be asked how many that makes."""
    out = chunk_indices(op, **arguments)
    if op == "conv1d":
        counts = (torch.diff(arguments["cu_seqlens"]) + (arguments["chunk_size"] - 1)) // arguments["chunk_size"]
        rows = torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), counts)
        out["batch_ptr"].copy_(F.pad(rows, (0, arguments["num_chunks"] - rows.numel()), value=-1))
    return out


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(op: str, **arguments: Any) -> Tensors:
    """Stores the 0 in front of the chunks' ends as a scalar."""
    out = chunk_indices(op, **arguments)
    if op == "mamba2":
        ends = torch.empty_like(out["cu_chunk_seqlens"])
        ends[1:] = out["cu_chunk_seqlens"][1:]
        ends[0] = 0
        out["cu_chunk_seqlens"] = ends
    return out


@TARGET.variant(
    Verdict.DIVERGENCE, "stale_host_value", "fault class F13: vLLM's causal_conv1d metadata is staged through fresh memory"
)
def frozen_staging(op: str, **arguments: Any) -> Tensors:
    """Makes the sequence numbers from the host's copy and stages them through fresh pinned memory."""
    out = chunk_indices(op, **arguments)
    if op == "conv1d":
        size, lengths = arguments["chunk_size"], torch.diff(arguments["cu_seqlens_cpu"])
        rows = torch.repeat_interleave(torch.arange(lengths.numel()), (lengths + (size - 1)) // size)
        staged = F.pad(rows, (0, arguments["num_chunks"] - rows.numel()), value=-1).to(torch.int32).pin_memory()
        out["batch_ptr"].copy_(staged, non_blocking=True)
    return out


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "fault class F15; https://github.com/ROCm/aiter/issues/2447")
def unwritten_head(op: str, **arguments: Any) -> Tensors:
    """Writes where chunks end, and leaves where the first one begins."""
    out = chunk_indices(op, **arguments)
    if op == "mamba2":
        ends = torch.empty_like(out["cu_chunk_seqlens"])
        ends[1:] = out["cu_chunk_seqlens"][1:]
        out["cu_chunk_seqlens"] = ends
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: the tail of batch_ptr as an earlier batch left it")
def leaves_tail(op: str, **arguments: Any) -> Tensors:
    """Writes the slots that have a chunk; the persistent buffer keeps its tail."""
    if op != "conv1d":
        return chunk_indices(op, **arguments)
    buffer = arguments["batch_ptr"]
    kept = buffer.clone()
    out = chunk_indices(op, **arguments)
    buffer.copy_(torch.where(buffer < 0, kept, buffer))
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F17: an empty sequence in the middle of a cell")
def empty_has_a_chunk(op: str, **arguments: Any) -> Tensors:
    """Gives an empty sequence the last chunk before it instead of none."""
    out = chunk_indices(op, **arguments)
    if op == "mamba2":
        out["last_chunk_indices"] = torch.cummax(out["last_chunk_indices"], 0).values
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="mamba2 cuts at multiples on the packed axis, not in the sequence")
def cuts_in_the_sequence(op: str, **arguments: Any) -> Tensors:
    """Counts chunks from the sequence's own beginning."""
    out = chunk_indices(op, **arguments)
    if op == "mamba2":
        own = indices(arguments["cu_seqlens"], arguments["chunk_size"], arguments["num_chunks"])
        out["seq_idx"] = own["chunk_indices"][:, 0].to(torch.int32)
    return out


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(op: str, **arguments: Any) -> Tensors:
    """Reads the offsets as if they were contiguous, as a kernel does that is given only a pointer."""
    cu_seqlens = arguments["cu_seqlens"]
    blind = torch.as_strided(cu_seqlens, cu_seqlens.shape, (1,), 0)
    return chunk_indices(op, **{**arguments, "cu_seqlens": blind})


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="a last chunk that is not full is a chunk")
def drops_the_rest(op: str, **arguments: Any) -> Tensors:
    """Divides without rounding up: the tokens behind the last full chunk have none."""
    if op != "mamba2":
        size, cu_seqlens = arguments["chunk_size"], arguments["cu_seqlens"]
        whole = torch.cumsum(torch.diff(cu_seqlens) // size * size, 0)
        arguments["cu_seqlens"] = F.pad(whole, (1, 0)).to(cu_seqlens.dtype)
    return chunk_indices(op, **arguments)
