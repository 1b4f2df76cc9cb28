"""`expand_seq_lens(lens_out, table_out, qsl, seq_lens, seq_lens_cpu, block_table, tail)`: what each token attends to.

The sparse indexer's decode metadata: vLLM's `_indexer_decode_metadata_kernel` (`v1/attention/ops/metadata.py`) and
`mla/indexer.py`, SGLang's `seqlens_expand_triton`. Each query token becomes a request of its own.

- `lens_out`: int32 `[bucket]`, `table_out`: int32 `[bucket, pages]`, on the device, persistent.
- `qsl`: `[requests + 1]`, int32 or int64, on the device: where each request's query tokens begin, from 0. A request may have
  none.
- `seq_lens`: `[requests]`, of the same dtype, on the device: lengths with the query tokens. A length may be below their number.
- `seq_lens_cpu`: the same on the host (pinned), for sizing only: an upper bound, ahead by what was drafted and not accepted.
- `block_table`: int32 `[requests, pages]`, on the device.
- `tail` (host): what padded tokens get: `zero` (vLLM: length 0, null pages), or `keep` what the buffers hold (SGLang, which
  allocates them empty).
- padding: padded requests have no query tokens (`flat`: vLLM), or two, and the length that graphs are filled with, 1 (`one`).
- returns both outputs as a dict: the last token of a request sees its whole sequence, each one before it one less, none less
  than nothing: kernels read a length as unsigned.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target

_PADDED_QUERY, _PADDED_LENGTH = 2, 1
_STALE_LENGTH, _STALE_PAGE = -7, -8  # what the outputs hold before
Answer = dict[str, torch.Tensor]


def expand_seq_lens(
    lens_out: torch.Tensor,
    table_out: torch.Tensor,
    qsl: torch.Tensor,
    seq_lens: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    block_table: torch.Tensor,
    tail: str,
) -> Answer:
    bucket, ends = lens_out.numel(), qsl[1:].contiguous()
    counts = torch.arange(1, bucket + 1, dtype=qsl.dtype, device=qsl.device)  # the tokens up to each, itself included
    # The first request that ends there or later. Padded tokens find one more, which an empty batch has as well: it has null
    # pages, and is so short that they see nothing.
    owner = torch.searchsorted(ends, counts)
    before = F.pad(seq_lens - ends, (0, 1), value=-bucket).index_select(0, owner)
    lens = (before + counts).clamp(min=0)
    pages = F.pad(block_table, (0, 0, 0, 1)).index_select(0, owner)
    if tail == "keep":
        live = counts <= qsl[-1:]
        lens, pages = torch.where(live, lens, lens_out), torch.where(live[:, None], pages, table_out)
    return {"lens": lens_out.copy_(lens), "table": table_out.copy_(pages)}


def reference(
    lens_out: np.ndarray,
    table_out: np.ndarray,
    qsl: np.ndarray,
    seq_lens: np.ndarray,
    seq_lens_cpu: np.ndarray,
    block_table: np.ndarray,
    tail: str,
) -> dict[str, np.ndarray]:
    """Request by request, its tokens counted up to its length."""
    lens = np.zeros_like(lens_out) if tail == "zero" else lens_out.copy()
    table = np.zeros_like(table_out) if tail == "zero" else table_out.copy()
    offsets = qsl.tolist()
    for request, length in enumerate(seq_lens.tolist()):
        begin, end = offsets[request : request + 2]
        if begin < end:
            lens[begin:end] = [max(0, length - after) for after in reversed(range(end - begin))]
            table[begin:end] = block_table[request]
    return {"lens": lens, "table": table}


def build(case: Case) -> Sequence[Feed]:
    dtype, layout = str(case.values["dtype"]), LAYOUTS[str(case.values["layout"])]
    pages, spare, tail = case.values["pages"], case.values["spare"], str(case.values["tail"])
    assert isinstance(pages, int) and isinstance(spare, int)
    query = _PADDED_QUERY if case.values["padding"] == "one" else 0
    ahead = 1 if case.values["mirror"] == "ahead" else 0
    qsls: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for step in case.steps:
        q_lens, seq_lens, live = step["q_lens"], step["seq_lens"], step["live"]
        assert isinstance(q_lens, list) and isinstance(seq_lens, list) and isinstance(live, int)
        padded = len(q_lens) - live
        qsls.append(np.cumsum([0, *q_lens[:live], *[query] * padded], dtype=dtype))
        lengths.append(np.array([*seq_lens[:live], *[_PADDED_LENGTH] * padded], dtype))
    bucket = max(int(qsl[-1]) for qsl in qsls) + spare
    feeds: list[Feed] = []
    for index, (qsl, known) in enumerate(zip(qsls, lengths, strict=True)):
        first = 1 + 10_000 * index  # page 0 is the null page; no step has another's pages
        table = np.arange(first, first + len(known) * pages, dtype=np.int32).reshape(len(known), pages)
        feeds.append(
            {
                "lens_out": Argument(np.full(bucket, _STALE_LENGTH, np.int32)),
                "table_out": Argument(np.full((bucket, pages), _STALE_PAGE, np.int32)),
                "qsl": Argument(qsl, layout),
                "seq_lens": Argument(known, layout),
                "seq_lens_cpu": Argument(known + ahead, space=Space.PINNED),
                "block_table": Argument(table, layout),
                "tail": tail,
            }
        )
    return feeds


TARGET = Target(
    name="expand_seq_lens",
    summary="causal length and block table of every query token (vLLM's indexer, SGLang's seqlens_expand)",
    implementation=expand_seq_lens,
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("tail", ("zero", "keep")),
        ChoiceAxis("padding", ("flat", "one")),
        ChoiceAxis("mirror", ("same", "ahead")),
        IntAxis("pages", simplest=1, most=8, common=(1, 2, 3)),
        IntAxis("spare", simplest=0, most=256, common=(0, 1, 5, 64)),
    ),
    stepped=(
        RowsAxis("q_lens", most=2048, total=2048),
        RowsAxis("seq_lens", most=2**30),
        StepIntAxis("live", up_to_batch=True),
    ),
    build=build,
    equivalent_mutants={
        "drop_clone@expand_seq_lens:10": "searchsorted answers the same for offsets that are not contiguous, with a warning"
    },
)


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The first half of the requests get what they get alone: neither later requests nor padded tokens matter."""
    qsl = call.inputs["qsl"]
    some = len(qsl) // 2
    total = int(qsl[some])
    alone = call.answer(
        {
            **call.inputs,
            "lens_out": call.inputs["lens_out"][:total].copy(),
            "table_out": call.inputs["table_out"][:total].copy(),
            "qsl": qsl[: some + 1].copy(),
            **{name: call.inputs[name][:some].copy() for name in ("seq_lens", "seq_lens_cpu", "block_table")},
        }
    )
    for name, answer in alone.items():
        if not np.array_equal(call.outputs[name][:total], answer):
            return f"{name}: in the batch {call.outputs[name][:total].tolist()}, alone {answer.tolist()}"
    return None


@TARGET.law
def last_token_sees_the_sequence(call: LawCall) -> str | None:
    """The last query token of each request sees all of it."""
    qsl, seq_lens = call.inputs["qsl"], call.inputs["seq_lens"]
    queries = np.diff(qsl) > 0
    last = call.outputs["lens"][qsl[1:][queries] - 1]
    return None if np.array_equal(last, seq_lens[queries]) else f"of {seq_lens.tolist()} the last tokens see {last.tolist()}"


@TARGET.law
def uniform_path_agrees(call: LawCall) -> str | None:
    """Where all requests have as many query tokens, the answer is a rectangle, as vLLM's uniform kernel writes it."""
    queries, seq_lens = np.unique(np.diff(call.inputs["qsl"])), call.inputs["seq_lens"]
    if len(queries) != 1:
        return None
    rectangle = np.maximum(seq_lens[:, None] - np.arange(int(queries[0]))[::-1], 0).ravel()
    seen = call.outputs["lens"][: rectangle.size]
    return None if np.array_equal(seen, rectangle) else f"ragged {seen.tolist()}, uniform {rectangle.tolist()}"


# -- faulty variants: `rest` is what they leave as it is --------------------------------------------------------------------


def owners(lens_out: torch.Tensor, qsl: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of the bucket, and the request of each."""
    tokens = torch.arange(lens_out.numel(), dtype=qsl.dtype, device=qsl.device)
    return tokens, torch.searchsorted(qsl[1:].contiguous(), tokens, right=True)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F7; https://github.com/vllm-project/vllm/issues/51970")
def no_clamp(lens_out: torch.Tensor, qsl: torch.Tensor, seq_lens: torch.Tensor, **rest: Any) -> Answer:
    """Lets lengths go below zero, as vLLM's ragged branch does where a sequence is shorter than its query."""
    answer = expand_seq_lens(lens_out, qsl=qsl, seq_lens=seq_lens, **rest)
    tokens, owner = owners(lens_out, qsl)
    before = F.pad(seq_lens - qsl[1:], (0, 1)).index_select(0, owner)
    lens_out.copy_(torch.where(tokens < qsl[-1:], (before + tokens + 1).to(torch.int32), lens_out))
    return answer


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(qsl: torch.Tensor, **rest: Any) -> Answer:
    """Scans the query lengths into offsets of its own, the first of which is stored as a scalar."""
    offsets = torch.empty_like(qsl)
    offsets[0] = 0
    offsets[1:] = torch.cumsum(torch.diff(qsl), 0)
    return expand_seq_lens(qsl=offsets, **rest)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: repeat_interleave without vLLM's output_size")
def no_output_size(table_out: torch.Tensor, qsl: torch.Tensor, block_table: torch.Tensor, **rest: Any) -> Answer:
    """Repeats the rows of the block table by the query lengths, for which the host must know their sum."""
    answer = expand_seq_lens(table_out=table_out, qsl=qsl, block_table=block_table, **rest)
    pages = torch.repeat_interleave(block_table, torch.diff(qsl), dim=0)
    table_out[: len(pages)] = pages
    return answer


_totals: dict[tuple[int, int], int] = {}


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F2: vLLM's actual_expanded is the host's")
def baked_total(lens_out: torch.Tensor, table_out: torch.Tensor, qsl: torch.Tensor, **rest: Any) -> Answer:
    """Expands as many tokens as there were when it last ran eagerly, whatever there are at replay."""
    key = (qsl.numel(), lens_out.numel())
    if not torch.cuda.is_current_stream_capturing():
        _totals[key] = int(qsl[-1])
    beyond = [(out[_totals[key] :], out[_totals[key] :].clone()) for out in (lens_out, table_out)]
    answer = expand_seq_lens(lens_out, table_out, qsl, **rest)
    for out, kept in beyond:
        out.copy_(torch.zeros_like(kept) if rest["tail"] == "zero" else kept)
    return answer


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: a stale tail; vLLM #53059")
def always_keeps_tail(tail: str, **rest: Any) -> Answer:
    """Writes real tokens only, into a buffer that others read as a whole."""
    return expand_seq_lens(tail="keep", **rest)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: padded tokens continue the last request")
def tail_counts_on(lens_out: torch.Tensor, qsl: torch.Tensor, seq_lens: torch.Tensor, **rest: Any) -> Answer:
    """Takes the bucket for the last request's end, so that padded tokens see what is not there yet."""
    if seq_lens.numel():
        beyond = lens_out.numel() - qsl[-1:]
        qsl = torch.cat([qsl[:-1], qsl[-1:] + beyond])
        seq_lens = torch.cat([seq_lens[:-1], seq_lens[-1:] + beyond])
    return expand_seq_lens(lens_out, qsl=qsl, seq_lens=seq_lens, **rest)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F2: the host's lengths are an upper bound (vLLM)")
def reads_mirror(seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, **rest: Any) -> Answer:
    """Takes the lengths from the host, in a way that a graph may hold: tokens that were not accepted are seen."""
    copied = seq_lens_cpu.to(seq_lens.device, non_blocking=True)
    return expand_seq_lens(seq_lens=copied, seq_lens_cpu=seq_lens_cpu, **rest)


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "fault class F5: vLLM's proposers raise the shared upper bound in place")
def raises_mirror(seq_lens_cpu: torch.Tensor, **rest: Any) -> Answer:
    """Counts the drafted token into the host's bound, which a replay does not do."""
    seq_lens_cpu += 1
    return expand_seq_lens(seq_lens_cpu=seq_lens_cpu, **rest)


@functools.lru_cache(maxsize=4)
def _cached_pages(qsl: torch.Tensor, block_table: torch.Tensor, lens_out: torch.Tensor) -> torch.Tensor:
    _, owner = owners(lens_out, qsl)
    return F.pad(block_table, (0, 0, 0, 1)).index_select(0, owner)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F10: a cache keyed by the tensors themselves")
def cached_table(
    lens_out: torch.Tensor, table_out: torch.Tensor, qsl: torch.Tensor, block_table: torch.Tensor, **rest: Any
) -> Answer:
    """Expands the block table once for all layers, and for every replay too."""
    cached = _cached_pages(qsl, block_table, lens_out)
    answer = expand_seq_lens(lens_out, table_out, qsl, block_table=block_table, **rest)
    if rest["tail"] == "zero":
        table_out.copy_(cached)
    return answer


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the table of plain decode: right while every request has one token")
def table_by_token(
    lens_out: torch.Tensor, table_out: torch.Tensor, qsl: torch.Tensor, block_table: torch.Tensor, **rest: Any
) -> Answer:
    """Expands the lengths, and takes the rows of the block table as they come."""
    answer = expand_seq_lens(lens_out, table_out, qsl, block_table=block_table, **rest)
    tokens = torch.arange(lens_out.numel(), device=qsl.device)
    rows = F.pad(block_table, (0, 0, 0, 1)).index_select(0, tokens.clamp(max=len(block_table)))
    table_out.copy_(torch.where(tokens[:, None] < qsl[-1:], rows, table_out))
    return answer


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the uniform kernel, taken for a ragged batch: right for a batch of one")
def uniform_queries(qsl: torch.Tensor, **rest: Any) -> Answer:
    """Shares the query tokens out evenly among the requests."""
    requests = qsl.numel() - 1
    each = torch.div(qsl[-1:], max(requests, 1), rounding_mode="floor")
    even = torch.cat([each * torch.arange(requests, dtype=qsl.dtype, device=qsl.device), qsl[-1:]])
    return expand_seq_lens(qsl=even, **rest)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: SGLang's local_kv_lens[::q_len] is not contiguous")
def stride_blind(seq_lens: torch.Tensor, **rest: Any) -> Answer:
    """Reads the base storage of the lengths as if the view were contiguous."""
    return expand_seq_lens(seq_lens=torch.as_strided(seq_lens, seq_lens.shape, (1,), 0), **rest)
