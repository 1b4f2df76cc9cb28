"""`paged_kv_indices(...)`: the paged KV triple that attention kernels read, and the lengths that can be read back from it.

The host plans outside the graph, before every replay, from its mirror of the lengths: how many pages each request has, and how
full the last one is. It stages both in one pinned buffer and copies that into the buffer that the graph knows. Then it gathers
the page numbers and turns the triple back into lengths. The ops are vLLM's `_compute_flashinfer_kv_metadata`
(`v1/attention/backends/flashinfer.py`), FlashInfer's `plan()` with its pinned workspace, and its `get_seq_lens`
(`flashinfer/page.py`).

- `seq_lens_cpu`: `[bucket]`, int32, host mirror; rows from `live` on are padding and hold what the last batch left.
- `live`: int32 `[]` on the host: how many rows are real. It changes from replay to replay.
- `staged`: `[2 * bucket + 1]`, int32 or int64, pinned, persistent.
- `planned`: like `staged`, on the device, persistent; every element is written. First `bucket + 1` offsets, `indptr`, flat over
  padded rows, then `bucket` `last_page_len`.
- `indices`: `[capacity]`, the same dtype, on the device, persistent.
- `block_table`: `[rows, columns]`, int32, on the device, rows > bucket, may be strided.
- `page_size` (host): at least 1.
- `empty_last` (host): what `last_page_len` holds for padded rows and for rows without tokens: 0 in vLLM, 1 in FlashInfer
  and xLLM.
- `tail` (host): `zero` clears the indices behind the last page; `keep` leaves them, for readers that stop in time.
- returns `planned`, `indices`, and fresh `seq_lens` `[bucket]`, which are `empty_last` for rows without pages.
"""

from __future__ import annotations

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

_STALE_LENGTH = 1  # what padded rows of the mirror hold: a length that a careless plan would count
_STALE_INDEX = 9  # what the buffer of indices holds: a page that somebody else owns


def plan(
    mode: Mode,
    seq_lens_cpu: torch.Tensor,
    live: torch.Tensor,
    staged: torch.Tensor,
    planned: torch.Tensor,
    page_size: int,
    empty_last: int,
    **given: Any,
) -> None:
    """The host's part."""
    _stage(seq_lens_cpu.numpy()[: int(live.numpy())], staged.numpy(), page_size, empty_last)
    planned.copy_(staged, non_blocking=True)


def _stage(lens: np.ndarray, staged: np.ndarray, page_size: int, empty_last: int) -> None:
    ends, last = staged[: staged.size // 2 + 1], staged[staged.size // 2 + 1 :]
    ends[0] = 0
    np.cumsum((lens + (page_size - 1)) // page_size, out=ends[1 : lens.size + 1])
    ends[lens.size + 1 :] = ends[lens.size]
    last[: lens.size] = np.where(lens > 0, (lens - 1) % page_size + 1, empty_last)
    last[lens.size :] = empty_last


def paged_kv_indices(
    prepared: object,
    planned: torch.Tensor,
    indices: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    tail: str,
    **given: Any,
) -> Tensors:
    """What is captured."""
    bucket = planned.numel() // 2
    ends = planned[1 : bucket + 1]
    page = torch.arange(indices.numel(), dtype=planned.dtype, device=planned.device)
    row = torch.searchsorted(ends, page, right=True)
    behind = row == bucket  # these read the table's row behind the last request, for nothing
    column = (page - planned.index_select(0, row)).masked_fill(behind, 0)
    pages = block_table[row, column]
    indices.copy_(torch.where(behind, indices, pages) if tail == "keep" else pages.masked_fill(behind, 0))
    full = (ends - planned[:bucket] - 1).clamp_min(0)  # get_seq_lens: all pages but the last are full
    return {
        "planned": planned,
        "indices": indices,
        "seq_lens": torch.add(planned[bucket + 1 :], full, alpha=page_size),
    }


def reference(
    seq_lens_cpu: np.ndarray,
    live: np.ndarray,
    indices: np.ndarray,
    block_table: np.ndarray,
    page_size: int,
    empty_last: int,
    tail: str,
    **given: Any,
) -> dict[str, np.ndarray]:
    """Hands out pages request by request, while there are tokens left."""
    ends, pages, last, lens = [0], [indices[:0]], [], []
    for row, length in enumerate(seq_lens_cpu.tolist()):
        left = length if row < int(live) else 0
        full, rest = divmod(left, page_size)
        count = full + (rest > 0)
        pages.append(block_table[row, :count])
        ends.append(ends[-1] + count)
        last.append(empty_last if left == 0 else rest or page_size)
        lens.append(left or empty_last)
    out = indices.copy()
    out[: ends[-1]] = np.concatenate(pages)
    if tail == "zero":
        out[ends[-1] :] = 0
    dtype = indices.dtype
    return {"planned": np.array(ends + last, dtype), "indices": out, "seq_lens": np.array(lens, dtype)}


def build(case: Case) -> Sequence[Feed]:
    dtype, layout = str(case.values["dtype"]), LAYOUTS[str(case.values["layout"])]
    page_size, spare = case.values["page_size"], case.values["spare"]
    assert isinstance(page_size, int) and isinstance(spare, int)
    steps: list[tuple[np.ndarray, int]] = []
    for step in case.steps:
        live = step["live"]
        assert isinstance(live, int)
        lens = np.array(step["seq_lens"], np.int32)
        lens[live:] = _STALE_LENGTH
        steps.append((lens, live))
    counts = [-(-lens[:live] // page_size) for lens, live in steps]
    bucket = steps[0][0].size
    columns = max(int(pages.max(initial=0)) for pages in counts) + 1  # tables have room for the longest request there may be
    capacity = max(int(pages.sum()) for pages in counts) + spare
    feeds: list[Feed] = []
    for index, (lens, live) in enumerate(steps):
        first = 10 + index
        table = np.arange(first, first + (bucket + 1) * columns, dtype=np.int32).reshape(bucket + 1, columns)
        feeds.append(
            {
                "seq_lens_cpu": Argument(lens, space=Space.HOST),
                "live": Argument(np.array(live, np.int32), space=Space.HOST),
                "staged": Argument(np.full(2 * bucket + 1, -1, dtype), space=Space.PINNED),
                "planned": Argument(np.full(2 * bucket + 1, -1, dtype)),
                "indices": Argument(np.full(capacity, _STALE_INDEX, dtype)),
                "block_table": Argument(table, layout),
                "page_size": page_size,
                "empty_last": int(case.values["empty_last"] == "one"),
                "tail": str(case.values["tail"]),
            }
        )
    return feeds


TARGET = Target(
    name="paged_kv_indices",
    summary="paged KV indptr, indices and last page lengths, planned by the host, and lengths read back (vLLM, FlashInfer)",
    implementation=TwoPart(plan, paged_kv_indices),
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("empty_last", ("zero", "one")),
        ChoiceAxis("tail", ("zero", "keep")),
        IntAxis("page_size", simplest=1, most=1024, common=(1, 2, 3, 16)),
        IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
    ),
    stepped=(RowsAxis("seq_lens", most=20, total=2048), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


@TARGET.law
def lengths_come_back(call: LawCall) -> str | None:
    """`get_seq_lens` is the inverse of the plan, but for rows without tokens, which are what the engine's rule says."""
    inputs = call.inputs
    lens = inputs["seq_lens_cpu"].copy()
    lens[int(inputs["live"]) :] = 0
    lens[lens == 0] = inputs["empty_last"]
    back = call.outputs["seq_lens"]
    return None if np.array_equal(back, lens) else f"lengths {lens.tolist()} come back as {back.tolist()}"


@TARGET.law
def every_page_is_needed(call: LawCall) -> str | None:
    """Offsets are monotone, and a request with pages has at least one token and at most a page in its last one."""
    indptr, last = np.split(call.outputs["planned"], [call.inputs["seq_lens_cpu"].size + 1])
    pages = np.diff(indptr)
    if (pages < 0).any():
        return f"offsets fall: {indptr.tolist()}"
    filled = last[pages > 0]
    if ((filled < 1) | (filled > call.inputs["page_size"])).any():
        return f"last pages hold {filled.tolist()} of {call.inputs['page_size']}"
    return None


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The live rows of a padded batch are those of the batch alone."""
    inputs, live = call.inputs, int(call.inputs["live"])
    if live == inputs["seq_lens_cpu"].size:
        return None
    plans = {name: np.full(2 * live + 1, -1, inputs[name].dtype) for name in ("staged", "planned")}
    lens, table = inputs["seq_lens_cpu"][:live].copy(), inputs["block_table"][: live + 1].copy()
    alone = call.answer({**inputs, **plans, "seq_lens_cpu": lens, "block_table": table})
    total, bucket = int(alone["planned"][live]), inputs["seq_lens_cpu"].size
    planned = call.outputs["planned"]
    parts = {
        "indptr": (planned[: live + 1], alone["planned"][: live + 1]),
        "last_page_len": (planned[bucket + 1 : bucket + 1 + live], alone["planned"][live + 1 :]),
        "indices": (call.outputs["indices"][:total], alone["indices"][:total]),
        "seq_lens": (call.outputs["seq_lens"][:live], alone["seq_lens"]),
    }
    for name, (padded, without) in parts.items():
        if not np.array_equal(padded, without):
            return f"live {name} are {padded.tolist()}, without padding {without.tolist()}"
    return None


@TARGET.law
def requests_in_another_order(call: LawCall) -> str | None:
    """Each request keeps its pages and its lengths when the requests come the other way round."""
    inputs, live = call.inputs, int(call.inputs["live"])
    rows = np.arange(len(inputs["block_table"]))
    rows[:live] = rows[:live][::-1]
    other = call.answer(
        {**inputs, "seq_lens_cpu": inputs["seq_lens_cpu"][rows[:-1]], "block_table": inputs["block_table"][rows]}
    )
    here, there = _requests(call.outputs, live), _requests(other, live)[::-1]
    return None if here == there else f"requests are {here}, the other way round {there[::-1]}"


def _requests(outputs: dict[str, np.ndarray], live: int) -> list[tuple[list[int], int, int]]:
    """Of each request its pages, how full the last one is, and its length."""
    indptr, last = np.split(outputs["planned"], [outputs["seq_lens"].size + 1])
    pages = np.split(outputs["indices"], indptr[1 : live + 1])[:live]
    return list(zip(map(np.ndarray.tolist, pages), last[:live].tolist(), outputs["seq_lens"][:live].tolist(), strict=True))


# -- faulty variants ---------------------------------------------------------------------------------------------------


def in_plan(fault: Callable[..., Any]) -> TwoPart:
    """The shipped graph behind another plan."""

    def body(prepared: object, **given: Any) -> Tensors:
        return paged_kv_indices(prepared, **given)

    body.__name__, body.__doc__ = fault.__name__, fault.__doc__
    return TwoPart(fault, body)


def in_graph(fault: Callable[..., Tensors]) -> TwoPart:
    """Another graph behind the shipped plan."""
    return TwoPart(plan, fault)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: FlashInfer #2185, the indices never copied")
@in_graph
def indices_never_copied(prepared: object, indices: torch.Tensor, **given: Any) -> Tensors:
    """Gathers the page numbers into a fresh tensor; the buffer that the kernel reads keeps those of an earlier batch."""
    return {**paged_kv_indices(prepared, indices=indices.clone(), **given), "indices": indices}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: a smaller batch leaves the tail of the indices")
@in_graph
def leaves_tail(prepared: object, tail: str, **given: Any) -> Tensors:
    """Writes as many page numbers as there are, whoever reads behind them."""
    return paged_kv_indices(prepared, tail="keep", **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: padded rows of the mirror; vLLM #47066")
@in_plan
def plans_padded_rows(mode: Mode, live: torch.Tensor, **given: Any) -> None:
    """Plans the whole bucket, with the lengths that the last batch left in the padded rows."""
    plan(mode, live=torch.tensor(given["seq_lens_cpu"].numel(), dtype=torch.int32), **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: offsets not flat behind the live rows; FlashInfer #4002")
@in_plan
def leaves_offsets(mode: Mode, live: torch.Tensor, staged: torch.Tensor, planned: torch.Tensor, **given: Any) -> None:
    """Stages the offsets of live rows only."""
    plan(mode, live=live, staged=staged, planned=planned, **given)
    rows = staged.numel() // 2
    staged[int(live) + 1 : rows + 1] = -1
    planned.copy_(staged, non_blocking=True)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F17: (seq - 1) % page + 1 of an empty request")
@in_plan
def empty_rows_have_a_full_page(mode: Mode, staged: torch.Tensor, planned: torch.Tensor, **given: Any) -> None:
    """Takes the remainder of -1: an empty request has a last page that is full."""
    plan(mode, staged=staged, planned=planned, **given)
    rows, live = staged.numel() // 2, int(given["live"])
    staged[rows + 1 : rows + 1 + live] = (given["seq_lens_cpu"][:live] - 1) % given["page_size"] + 1
    planned.copy_(staged, non_blocking=True)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F17: vLLM fills last pages with 0, FlashInfer with 1")
@in_plan
def fills_by_the_other_rule(mode: Mode, empty_last: int, **given: Any) -> None:
    """Fills the last page of rows without tokens by the other engine's rule: padded requests get or lose a token."""
    plan(mode, empty_last=1 - empty_last, **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="a length that is a multiple of the page size")
@in_plan
def whole_pages_are_empty(mode: Mode, staged: torch.Tensor, planned: torch.Tensor, **given: Any) -> None:
    """Takes seq % page for the last page, which is 0 where that page is full."""
    plan(mode, staged=staged, planned=planned, **given)
    last = staged[staged.numel() // 2 + 1 :]
    last[last == given["page_size"]] = 0
    planned.copy_(staged, non_blocking=True)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F7: rows without pages; FlashInfer's get_seq_lens clamps")
@in_graph
def no_clamp(prepared: object, planned: torch.Tensor, page_size: int, **given: Any) -> Tensors:
    """Counts the full pages of a row without pages as -1: its length is negative, which a kernel takes for very much."""
    answer = paged_kv_indices(prepared, planned=planned, page_size=page_size, **given)
    bucket = planned.numel() // 2
    full = torch.diff(planned[: bucket + 1]) - 1
    return {**answer, "seq_lens": torch.add(planned[bucket + 1 :], full, alpha=page_size)}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
@in_graph
def stride_blind(prepared: object, block_table: torch.Tensor, **given: Any) -> Tensors:
    """Reads the block table as if its rows and columns lay side by side, as a kernel does that is given only a pointer."""
    rows, columns = block_table.shape
    return paged_kv_indices(prepared, block_table=torch.as_strided(block_table, (rows, columns), (columns, 1), 0), **given)


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
@in_graph
def scalar_store(prepared: object, planned: torch.Tensor, **given: Any) -> Tensors:
    """Stores the 0 in front of the offsets as a scalar."""
    planned[0] = 0
    return paged_kv_indices(prepared, planned=planned, **given)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: SGLang's window_kv_indices[:kv_last_index]")
@in_graph
def slices_by_a_device_count(prepared: object, planned: torch.Tensor, indices: torch.Tensor, **given: Any) -> Tensors:
    """Clears the tail by a slice, whose bound the host must read."""
    answer = paged_kv_indices(prepared, planned=planned, indices=indices, **given)
    if given["tail"] == "zero":
        indices[planned[planned.numel() // 2] :].zero_()
    return answer


@TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F4: stale plan entries; FlashInfer #5176")
@in_plan
def plans_for_capture_only(mode: Mode, **given: Any) -> None:
    """Keeps the plan of the capture: the batch size is the same, after all."""
    if mode is not Mode.REPLAY:
        plan(mode, **given)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F13: frozen staging; vLLM #32799, TensorRT-LLM #15546")
@in_graph
def frozen_staging(prepared: object, staged: torch.Tensor, planned: torch.Tensor, **given: Any) -> Tensors:
    """Copies the plan inside the graph, through fresh pinned memory, that nobody writes again."""
    planned.copy_(staged.clone().pin_memory(), non_blocking=True)
    return paged_kv_indices(prepared, planned=planned, **given)


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "fault class F5: capture writes to a host mirror that is not its own")
@in_plan
def dummy_in_the_mirror(mode: Mode, seq_lens_cpu: torch.Tensor, **given: Any) -> None:
    """Leaves the lengths of the batch that is captured in the mirror: a page for each request."""
    plan(mode, seq_lens_cpu=seq_lens_cpu, **given)
    if mode is Mode.CAPTURE:
        seq_lens_cpu.fill_(given["page_size"])


def _fresh_plan(mode: Mode, planned: torch.Tensor, **given: Any) -> torch.Tensor:
    """The host's part of `bakes_an_address`: the plan of this batch, in a new tensor."""
    fresh = torch.empty_like(planned)
    plan(mode, planned=fresh, **given)
    return fresh


def bakes_an_address(prepared: torch.Tensor, planned: torch.Tensor, **given: Any) -> Tensors:
    """Captures a reader of the plan that the host uploads to a new tensor for every batch."""
    planned.copy_(prepared)
    return paged_kv_indices(prepared, planned=planned, **given)


TARGET.variant(
    Verdict.DANGLING_BUFFER, source="fault class F3: an address baked; https://github.com/vllm-project/vllm/issues/36070"
)(TwoPart(_fresh_plan, bakes_an_address))
