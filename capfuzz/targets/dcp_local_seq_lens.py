"""`dcp_local_seq_lens(...)`: how many of each request's tokens lie on one rank of a decode context parallel group.

Tokens are dealt to the ranks in runs of `interleave`, round-robin. One rank's answers are its share of each request, and
its share of each query token of a speculative verify step, where token t of `query_len` sees `seq_len - query_len + 1 + t`
tokens: first cut, then dealt. The ops are vLLM's `get_dcp_local_seq_lens` (`v1/attention/backends/utils.py`; without a rank it
gives every rank's share), the static form in `v1/worker/gpu/cp_utils.py`, and `dcp_local_verify_row_lens`
(`rocm_aiter_mla.py`).

- `local`: `[bucket + spare]`, int32 or int64, on the device, persistent; every element is written.
- `seq_lens`: `[bucket]`, the same dtype, on the device, may be a strided view; rows from `live` on are padding and hold what
  the last batch left.
- `seq_lens_cpu`: `[bucket]` on the host: the mirror that engines keep for decisions outside the graph. The op must not read it.
- `live`: int32 `[]` on the device: how many rows are real. It changes from replay to replay.
- `rank`: host int, int32 `[]` on the device, or None for every rank. `world`, `interleave`, `query_len` (host): at least 1.
- `padding` (host): `zero` gives padded rows no tokens (vLLM's static buffer); `computed` treats them as any row (the fresh
  form, where the engine has filled `seq_lens` itself).
- returns for one rank `local`, zero from `bucket` on, and fresh `rows` `[bucket * query_len]`; for every rank fresh `ranks`
  `[bucket, world]` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis.strategies import SearchStrategy

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.differential.two_part import Mode, TwoPart
from capfuzz.targets.axes import ChoiceAxis, FixedAxis, IntAxis, RowsAxis, StepAxis, StepIntAxis
from capfuzz.targets.case import Case, InvalidCaseError, Value
from capfuzz.targets.generate import cases_of
from capfuzz.targets.model import Target

Tensors = dict[str, torch.Tensor]
Rank = int | torch.Tensor | None

_STALE = 9  # what padded rows hold: a length that a careless op would deal out


def dcp_local_seq_lens(
    local: torch.Tensor,
    seq_lens: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    live: torch.Tensor,
    rank: Rank,
    world: int,
    interleave: int,
    query_len: int,
    padding: str,
) -> Tensors:
    lens = _live_lens(seq_lens, live, padding)
    if rank is None:
        every = torch.arange(world, dtype=lens.dtype, device=lens.device)
        return {"ranks": _dealt(lens[:, None], every, world, interleave)}
    rows = _dealt(_visible(lens, query_len), rank, world, interleave)
    local[: lens.numel()].copy_(rows[:, -1])
    local[lens.numel() :].zero_()
    return {"local": local, "rows": rows.view(-1)}


def _live_lens(seq_lens: torch.Tensor, live: torch.Tensor, padding: str) -> torch.Tensor:
    if padding == "computed":
        return seq_lens
    return torch.where(torch.arange(seq_lens.numel(), device=seq_lens.device) < live, seq_lens, 0)


def _visible(lens: torch.Tensor, query_len: int) -> torch.Tensor:
    """What each query token sees; a request shorter than the query has tokens that see nothing."""
    if query_len == 1:
        return lens[:, None]
    before = torch.arange(1 - query_len, 1, dtype=lens.dtype, device=lens.device)
    return (lens[:, None] + before).clamp_min(0)


def _dealt(lens: torch.Tensor, rank: int | torch.Tensor, world: int, interleave: int) -> torch.Tensor:
    """Whole rounds give every rank one run; the last round gives this rank what is left after the ranks before it."""
    rest = torch.sub(lens % (world * interleave), rank, alpha=interleave)
    return torch.add(rest.clamp(0, interleave), lens // (world * interleave), alpha=interleave)


def reference(
    local: np.ndarray,
    seq_lens: np.ndarray,
    seq_lens_cpu: np.ndarray,
    live: np.ndarray,
    rank: int | np.ndarray | None,
    world: int,
    interleave: int,
    query_len: int,
    padding: str,
) -> dict[str, np.ndarray]:
    """Deals run by run: each whole run to the next rank, and the broken one at the end to the rank whose turn it is."""

    def dealt(tokens: np.ndarray, to: int | np.ndarray) -> np.ndarray:
        runs, broken = np.divmod(tokens, interleave)
        rounds, turn = np.divmod(runs, world)
        whole = rounds + (to < turn)
        return whole * interleave + np.where(to == turn, broken, 0)

    lens = seq_lens.astype(np.int64)
    if padding == "zero":
        lens[int(live) :] = 0
    if rank is None:
        return {"ranks": np.stack([dealt(lens, to) for to in range(world)], 1).astype(seq_lens.dtype)}
    out = np.zeros_like(local)
    out[: lens.size] = dealt(lens, rank)
    unseen = np.tile(np.arange(query_len)[::-1], lens.size)
    rows = dealt(np.maximum(np.repeat(lens, query_len) - unseen, 0), rank)
    return {"local": out, "rows": rows.astype(seq_lens.dtype)}


FIXED: tuple[FixedAxis, ...] = (
    ChoiceAxis("dtype", ("int32", "int64")),
    ChoiceAxis("layout", tuple(LAYOUTS)),
    ChoiceAxis("padding", ("zero", "computed")),
    ChoiceAxis("rank_on", ("host", "device", "every")),
    IntAxis("world", simplest=1, most=64, common=(1, 2, 3, 4)),
    IntAxis("rank", simplest=0, most=63, common=(0, 1, 2, 3)),
    IntAxis("interleave", simplest=1, most=1024, common=(1, 2, 3, 16)),
    IntAxis("query_len", simplest=1, most=16, common=(1, 2, 3, 5)),
    IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
)


def _total(values: Mapping[str, Value]) -> int:
    return 2**31 - 1 if values["dtype"] == "int32" else 2**36


STEPPED: tuple[StepAxis, ...] = (RowsAxis("seq_lens", most=2**34, total=_total), StepIntAxis("live", up_to_batch=True))


def build(case: Case) -> Sequence[Feed]:
    values = case.values
    dtype, layout = str(values["dtype"]), LAYOUTS[str(values["layout"])]
    rank, world, spare = values["rank"], values["world"], values["spare"]
    assert isinstance(rank, int) and isinstance(world, int) and isinstance(spare, int)
    if rank >= world:
        raise InvalidCaseError("case.values.rank", f"must be below the world size {world}, is {rank}")
    ranks: dict[str, int | Argument | None] = {"host": rank, "device": Argument(np.array(rank, np.int32)), "every": None}
    feeds: list[Feed] = []
    for step in case.steps:
        rows, live = step["seq_lens"], step["live"]
        assert isinstance(rows, list) and isinstance(live, int)
        lens = np.array([*rows[:live], *[_STALE] * (len(rows) - live)], dtype=dtype)
        feeds.append(
            {
                "local": Argument(np.full(len(rows) + spare, -1, dtype)),
                "seq_lens": Argument(lens, layout),
                "seq_lens_cpu": Argument(lens.copy(), space=Space.HOST),
                "live": Argument(np.array(live, np.int32)),
                "rank": ranks[str(values["rank_on"])],
                **{name: values[name] for name in ("world", "interleave", "query_len", "padding")},
            }
        )
    return feeds


def strategy() -> SearchStrategy[Case]:
    """The axes' own way, with a rank that the world has."""

    def legal(case: Case) -> Case:
        return case.with_value("rank", int(case.values["rank"]) % int(case.values["world"]))

    return cases_of(FIXED, STEPPED).map(legal)


TARGET = Target(
    name="dcp_local_seq_lens",
    summary="lengths on one rank of a context parallel group, for requests and for the rows of a verify step (vLLM)",
    implementation=dcp_local_seq_lens,
    reference=reference,
    fixed=FIXED,
    stepped=STEPPED,
    draw=strategy,
    build=build,
)


@TARGET.law
def ranks_share_every_token(call: LawCall) -> str | None:
    """Over all ranks the lengths add up to the whole, and no two ranks differ by more than one run."""
    inputs = call.inputs
    if inputs["rank"] is not None:
        return None
    ranks, lens = call.outputs["ranks"].astype(np.int64), inputs["seq_lens"].astype(np.int64)
    if inputs["padding"] == "zero":
        lens[int(inputs["live"]) :] = 0
    if not np.array_equal(ranks.sum(1), lens):
        return f"over the ranks the lengths add up to {ranks.sum(1).tolist()}, not {lens.tolist()}"
    if lens.size and int(np.ptp(ranks, axis=1).max()) > inputs["interleave"]:
        return f"two ranks differ by more than {inputs['interleave']}: {ranks.tolist()}"
    return None


@TARGET.law
def last_verify_row_is_the_request(call: LawCall) -> str | None:
    """The last token of a verify step sees the whole request."""
    if call.inputs["rank"] is None:
        return None
    last = call.outputs["rows"][call.inputs["query_len"] - 1 :: call.inputs["query_len"]]
    local = call.outputs["local"][: last.size]
    return None if np.array_equal(last, local) else f"last rows are {last.tolist()}, the requests' lengths {local.tolist()}"


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The live rows of a padded batch are those of the batch alone."""
    inputs, live = call.inputs, int(call.inputs["live"])
    if live == inputs["seq_lens"].size:
        return None
    lens = inputs["seq_lens"][:live].copy()
    alone = call.answer({**inputs, "local": np.full(live, -1, lens.dtype), "seq_lens": lens, "seq_lens_cpu": lens.copy()})
    sizes = {"local": live, "rows": live * inputs["query_len"], "ranks": live}
    for name, answer in call.outputs.items():
        if not np.array_equal(answer[: sizes[name]], alone[name][: sizes[name]]):
            return f"live {name} are {answer[: sizes[name]].tolist()}, without padding {alone[name].tolist()}"
    return None


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(local: torch.Tensor, **given: Any) -> Tensors:
    """Clears the buffer's last element, behind the bucket, with a scalar."""
    answer = dcp_local_seq_lens(local, **given)
    if local.numel() > given["seq_lens"].numel():
        local[-1] = 0
    return answer


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: a device value read by the host; ROCm/aiter #4375")
def rank_on_the_host(rank: Rank, **given: Any) -> Tensors:
    """Turns a rank that lies on the device into a host integer."""
    return dcp_local_seq_lens(rank=None if rank is None else int(rank), **given)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: slice by a device count")
def slices_by_live(seq_lens: torch.Tensor, live: torch.Tensor, **given: Any) -> Tensors:
    """Clears the padded rows by a slice, whose bound the host must read."""
    if given["padding"] == "zero":
        seq_lens = seq_lens.clone()
        seq_lens[live:].zero_()
    return dcp_local_seq_lens(seq_lens=seq_lens, live=live, **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: a stale padded tail; vLLM #47066")
def deals_padding(padding: str, **given: Any) -> Tensors:
    """Deals out what the last batch left in the padded rows."""
    return dcp_local_seq_lens(padding="computed", **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: rows behind the bucket keep what a larger batch left")
def leaves_tail(local: torch.Tensor, **given: Any) -> Tensors:
    """Writes the bucket's rows only."""
    bucket = given["seq_lens"].numel()
    kept = local[bucket:].clone()
    answer = dcp_local_seq_lens(local, **given)
    local[bucket:].copy_(kept)
    return answer


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="vLLM's rule for verify rows: truncate before sharding")
def shards_before_truncating(**given: Any) -> Tensors:
    """Takes the tokens that a row does not see off the rank's own share."""
    answer = dcp_local_seq_lens(**given)
    if given["rank"] is None:
        return answer
    share = answer["local"][: given["seq_lens"].numel()]
    return {**answer, "rows": _visible(share, given["query_len"]).reshape(-1)}


@TARGET.variant(
    Verdict.REFERENCE_MISMATCH, source="fault class F8: SGLang's aiter backend, `local_kv_lens[::q_len]` not copied"
)
def rows_read_as_contiguous(local: torch.Tensor, **given: Any) -> Tensors:
    """Reads every query_len-th row as if these lay side by side: right for a batch of one."""
    answer = dcp_local_seq_lens(local, **given)
    bucket, query_len = given["seq_lens"].numel(), given["query_len"]
    if bucket and given["rank"] is not None:
        local[:bucket].copy_(torch.as_strided(answer["rows"], (bucket,), (1,), query_len - 1))
    return answer


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(seq_lens: torch.Tensor, **given: Any) -> Tensors:
    """Reads the base storage as if the view were contiguous, as a kernel does that is given only a pointer."""
    return dcp_local_seq_lens(seq_lens=torch.as_strided(seq_lens, seq_lens.shape, (1,), 0), **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F7: a negative length, read as uint32 by a kernel")
def no_clamp_at_zero(rank: Rank, **given: Any) -> Tensors:
    """Lets a token of a request that is shorter than the query see less than nothing, which a kernel takes for very much."""
    answer = dcp_local_seq_lens(rank=rank, **given)
    if rank is None:
        return answer
    lens = _live_lens(given["seq_lens"], given["live"], given["padding"])
    visible = (lens[:, None] + torch.arange(1 - given["query_len"], 1, device=lens.device)) & 0xFFFFFFFF
    return {**answer, "rows": _dealt(visible, rank, given["world"], given["interleave"]).view(-1).to(lens.dtype)}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the last, broken round is dealt from the wrong end")
def wrong_end(rank: Rank, world: int, **given: Any) -> Tensors:
    """Counts the ranks downwards: their shares still add up."""
    return dcp_local_seq_lens(rank=None if rank is None else world - 1 - rank, world=world, **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the form before cp_kv_cache_interleave_size: runs of one token")
def runs_of_one(interleave: int, **given: Any) -> Tensors:
    """Deals token by token, whatever the interleave."""
    return dcp_local_seq_lens(interleave=1, **given)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the rest of the last round is not cut off at one run")
def no_clamp_at_one_run(rank: Rank, **given: Any) -> Tensors:
    """Gives every rank all that is left after the ranks before it, the next ranks' runs too."""
    answer, world, interleave = dcp_local_seq_lens(rank=rank, **given), given["world"], given["interleave"]
    if rank is not None:
        return answer
    lens = _live_lens(given["seq_lens"], given["live"], given["padding"])[:, None]
    before = torch.arange(0, world * interleave, interleave, dtype=lens.dtype, device=lens.device)
    rest = (lens % (world * interleave) - before).clamp_min(0)
    return {"ranks": lens // (world * interleave) * interleave + rest}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F9: int32 narrowing")
def narrows(seq_lens: torch.Tensor, **given: Any) -> Tensors:
    """Deals int32 lengths whatever the dtype."""
    answer = dcp_local_seq_lens(seq_lens=seq_lens.to(torch.int32), **given)
    return {name: value.to(seq_lens.dtype) for name, value in answer.items()}


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F11: vLLM's should_skip_dcp_context_attention, baked")
def skips_without_context(seq_lens_cpu: torch.Tensor, **given: Any) -> Tensors:
    """Asks the host mirror whether there is any context, and captures the branch for none."""
    answer = dcp_local_seq_lens(seq_lens_cpu=seq_lens_cpu, **given)
    if not seq_lens_cpu.any():
        answer = {name: value.zero_() for name, value in answer.items()}
    return answer


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "fault class F5: a builder changes shared metadata; vLLM #51585")
def fills_the_mirror(seq_lens_cpu: torch.Tensor, **given: Any) -> Tensors:
    """Fills the host mirror for the capture of a graph, under the eyes of the next builder."""
    if torch.cuda.is_current_stream_capturing():
        seq_lens_cpu.fill_(1)
    return dcp_local_seq_lens(seq_lens_cpu=seq_lens_cpu, **given)


def _fresh_metadata(mode: Mode, **given: Any) -> Tensors:
    """The host's part of `bakes_an_address`: the metadata of this batch, in new tensors."""
    return dcp_local_seq_lens(**given)


def bakes_an_address(prepared: Tensors, **given: Any) -> Tensors:
    """Captures a reader of lengths that the host path builds in a new tensor for every batch."""
    return {name: value + 0 if value is not given["local"] else value for name, value in prepared.items()}


TARGET.variant(
    Verdict.DANGLING_BUFFER, source="fault class F3: an address baked; https://github.com/vllm-project/vllm/issues/36070"
)(TwoPart(_fresh_metadata, bakes_an_address))
