"""`token_to_req_indices(buf, qsl, qsl_cpu)`: which request each token of the batch belongs to.

vLLM's `compute_token_to_req_indices` (`v1/attention/ops/metadata.py`), recorded in the graphs of drafts and run before others.

- `buf`: int32 `[bucket]`, on the device, persistent: one element a token of the bucket; every element is written.
- `qsl`: `[requests + 1]`, int32 or int64, on the device: where each request's tokens begin (`query_start_loc`), from 0. A
  request may have no tokens. It changes from replay to replay; at most `bucket` tokens in all.
- `qsl_cpu`: the same on the host, as the metadata keep it for others. The total is right, the boundaries may be those of before
  (vLLM's adaptive verification moves tokens between requests on the device only). The op has no business with it.
- padding: tokens from the last offset on belong to request 0. Padded *requests* repeat the last offset (`flat`: vLLM), or are
  counted with a token each, which then is theirs (`counted`: LMDeploy's offsets).
- returns `buf`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Mode, TwoPart, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target


def token_to_req_indices(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    tokens = torch.arange(buf.numel(), dtype=qsl.dtype, device=qsl.device)
    owner = torch.searchsorted(qsl[1:].contiguous(), tokens, right=True, out_int32=True)
    return buf.copy_(torch.where(tokens < qsl[-1:], owner, 0))


def reference(buf: np.ndarray, qsl: np.ndarray, qsl_cpu: np.ndarray) -> np.ndarray:
    """Request by request, each writes its own slice."""
    out = np.zeros(len(buf), np.int32)
    for request in range(len(qsl) - 1):
        out[int(qsl[request]) : int(qsl[request + 1])] = request
    return out


def build(case: Case) -> Sequence[Feed]:
    dtype, layout = str(case.values["dtype"]), LAYOUTS[str(case.values["layout"])]
    spare = case.values["spare"]
    assert isinstance(spare, int)
    offsets: list[np.ndarray] = []
    for step in case.steps:
        lens, live = step["lens"], step["live"]
        assert isinstance(lens, list) and isinstance(live, int)
        padded = 1 if case.values["padding"] == "counted" else 0
        offsets.append(np.cumsum([0, *lens[:live], *[padded] * (len(lens) - live)], dtype=dtype))
    bucket = max(int(qsl[-1]) for qsl in offsets) + spare
    return [
        {
            "buf": Argument(np.full(bucket, -1, np.int32)),
            "qsl": Argument(qsl, layout),
            "qsl_cpu": Argument(_mirror(qsl, str(case.values["mirror"])), space=Space.PINNED),
        }
        for qsl in offsets
    ]


def _mirror(qsl: np.ndarray, kind: str) -> np.ndarray:
    """`moved`: as if the last request had all the tokens."""
    mirror: np.ndarray = qsl.copy()
    if kind == "moved":
        mirror[:-1] = 0
    return mirror


TARGET = Target(
    name="token_to_req_indices",
    summary="which request each token belongs to (vLLM's compute_token_to_req_indices)",
    implementation=token_to_req_indices,
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("padding", ("flat", "counted")),
        ChoiceAxis("mirror", ("same", "moved")),
        IntAxis("spare", simplest=0, most=256, common=(0, 1, 5, 64)),
    ),
    stepped=(RowsAxis("lens", most=2048, total=2048), StepIntAxis("live", up_to_batch=True)),
    build=build,
    equivalent_mutants={
        "drop_clone@token_to_req_indices:3": "searchsorted answers the same for offsets that are not contiguous, with a warning"
    },
)


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """Tokens belong to the same requests without the requests that have none at the end, and without padded tokens."""
    qsl = call.inputs["qsl"]
    total = int(qsl[-1])
    live = int(np.searchsorted(qsl, qsl[-1]))  # the first request that begins at the end
    fresh = np.full(total, -1, np.int32)
    alone = call.answer({**call.inputs, "buf": fresh, "qsl": qsl[: live + 1].copy()})
    if np.array_equal(call.outputs[:total], alone):
        return None
    return f"with padding {call.outputs[:total].tolist()}, without {alone.tolist()}"


@TARGET.law
def requests_have_their_tokens(call: LawCall) -> str | None:
    """Counting the tokens of each request gives the lengths back, requests without any included."""
    qsl = call.inputs["qsl"]
    counts = np.bincount(call.outputs[: int(qsl[-1])], minlength=len(qsl) - 1)
    return (
        None
        if np.array_equal(counts, np.diff(qsl))
        else f"requests have {counts.tolist()} tokens, {np.diff(qsl).tolist()} given"
    )


@TARGET.law
def padded_tokens_are_of_request_0(call: LawCall) -> str | None:
    """What lies behind the last offset may be looked up: it names a request that there is."""
    tail = call.outputs[int(call.inputs["qsl"][-1]) :]
    return None if (tail == 0).all() else f"padded tokens belong to {tail.tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Marks where requests end and accumulates; the mark behind the last token is cleared with a scalar."""
    marks = torch.zeros(buf.numel() + 1, dtype=torch.int32, device=qsl.device)
    marks.index_add_(0, qsl[1:], torch.ones_like(qsl[1:], dtype=torch.int32))
    marks[-1] = 0
    owner = torch.cumsum(marks, 0, dtype=torch.int32)[:-1]
    tokens = torch.arange(buf.numel(), device=qsl.device)
    return buf.copy_(torch.where(tokens < qsl[-1:], owner, 0))


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: repeat_interleave without output_size")
def no_output_size(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Repeats each request as often as it has tokens, for which the host must know how many there are."""
    requests = torch.arange(qsl.numel() - 1, dtype=torch.int32, device=qsl.device)
    owner = torch.repeat_interleave(requests, torch.diff(qsl))
    return buf.copy_(F.pad(owner, (0, buf.numel() - owner.numel())))


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F2: vLLM's num_mapped_tokens comes from the host")
def host_count(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Takes from the mirror how many tokens are real, so that a graph maps no more than it was captured with."""
    token_to_req_indices(buf, qsl, qsl_cpu)
    buf[int(qsl_cpu[-1]) :].zero_()
    return buf


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F5: device and host offsets differ by right (vLLM)")
def reads_mirror(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Takes the offsets from the host's mirror, in a way that a graph may hold."""
    return token_to_req_indices(buf, qsl_cpu.to(qsl.device, non_blocking=True), qsl_cpu)


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "https://github.com/vllm-project/vllm/pull/51585")
def clears_mirror(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Clears for capture the mirror that it shares with the builders that come after it."""
    if torch.cuda.is_current_stream_capturing():
        qsl_cpu.zero_()
    return token_to_req_indices(buf, qsl, qsl_cpu)


@functools.lru_cache(maxsize=4)
def _cached_map(qsl: torch.Tensor, tokens: int) -> torch.Tensor:
    fresh = torch.empty(tokens, dtype=torch.int32, device=qsl.device)
    return token_to_req_indices(fresh, qsl, qsl)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F10: vLLM caches the map on the metadata, for all groups")
def cached_map(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Hands out what an earlier call with these offsets made: the graph holds a copy of it, and no kernel that makes it."""
    return buf.copy_(_cached_map(qsl, buf.numel()))


def _prepare_fresh_map(mode: Mode, buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    return token_to_req_indices(torch.empty_like(buf), qsl, qsl_cpu)


def fresh_map(prepared: torch.Tensor, buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Every step makes its map anew outside the graph, which still reads the one that it was captured with."""
    return buf.copy_(prepared)


TARGET.variant(Verdict.DANGLING_BUFFER, source="fault class F3: https://github.com/vllm-project/vllm/pull/36070")(
    TwoPart(_prepare_fresh_map, fresh_map)
)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: a stale tail; vLLM #47066")
def leaves_tail(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Writes the real tokens only: padded ones keep what an earlier, larger batch left."""
    kept = buf.clone()
    token_to_req_indices(buf, qsl, qsl_cpu)
    tokens = torch.arange(buf.numel(), device=qsl.device)
    return buf.copy_(torch.where(tokens < qsl[-1:], buf, kept))


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: padded tokens point behind the last request")
def tail_out_of_range(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Searches for padded tokens too, and finds one request more than there are."""
    tokens = torch.arange(buf.numel(), dtype=qsl.dtype, device=qsl.device)
    return buf.copy_(torch.searchsorted(qsl[1:].contiguous(), tokens, right=True))


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F17: requests without tokens")
def empty_requests_collapse(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Marks where requests end with a store, not a sum, so that requests that end at one place count as one."""
    marks = torch.zeros(buf.numel() + 1, dtype=torch.int32, device=qsl.device)
    marks.index_fill_(0, qsl[1:].long(), 1)
    owner = torch.cumsum(marks, 0, dtype=torch.int32)[:-1]
    tokens = torch.arange(buf.numel(), device=qsl.device)
    return buf.copy_(torch.where(tokens < qsl[-1:], owner, 0))


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="the path for uniform decode, taken for any batch: right for a batch of one")
def uniform_requests(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Divides by the length of the first request."""
    tokens = torch.arange(buf.numel(), dtype=qsl.dtype, device=qsl.device)
    owner = tokens // torch.diff(qsl[:2], append=qsl[-1:])[:1].clamp(min=1)
    return buf.copy_(torch.where(tokens < qsl[-1:], owner, 0))


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(buf: torch.Tensor, qsl: torch.Tensor, qsl_cpu: torch.Tensor) -> torch.Tensor:
    """Reads the base storage of the offsets as if the view were contiguous."""
    return token_to_req_indices(buf, torch.as_strided(qsl, qsl.shape, (1,), 0), qsl_cpu)
