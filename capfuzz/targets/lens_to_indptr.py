"""`lens_to_indptr(buf, lens, live, tail)`: an exclusive scan of lengths into a static buffer that is larger than the batch.

The most repeated idiom of every stack: `kv_indptr[1 : bs + 1] = cumsum(lens)` in SGLang, `query_start_loc` in vLLM,
`get_indptr` in FlashInfer.

- `buf`: `[capacity + 1]`, int32 or int64, persistent; every element is written.
- `lens`: `[bucket]`, int32 or int64; rows from `live` on are padding, and hold what the last batch left.
- `live`: int32 `[]` on the device: how many rows are real. It changes from replay to replay.
- `tail` (host): what padded rows get: `last` repeats the total (vLLM, xLLM), `zero` is LMDeploy's `q_start_loc`.
- returns `buf`: `buf[0] == 0`, then the running sum of the live rows, then the tail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case, Value
from capfuzz.targets.model import Target

_STALE = 7  # what padded rows hold: a length that a careless scan would count


def lens_to_indptr(buf: torch.Tensor, lens: torch.Tensor, live: torch.Tensor, tail: str) -> torch.Tensor:
    rows = torch.arange(lens.numel(), device=lens.device)
    counted = torch.where(rows < live, lens, 0)
    buf[:1].zero_()
    scan = buf[1 : lens.numel() + 1]
    scan.copy_(torch.cumsum(counted, 0, dtype=torch.int64))
    if tail == "zero":
        scan.masked_fill_(rows >= live, 0)
        buf[lens.numel() + 1 :].zero_()
    else:
        buf[lens.numel() + 1 :].copy_(buf[lens.numel() : lens.numel() + 1].expand(buf.numel() - lens.numel() - 1))
    return buf


def reference(buf: np.ndarray, lens: np.ndarray, live: np.ndarray, tail: str) -> np.ndarray:
    out = np.zeros_like(buf)
    total = 0
    for row, length in enumerate(lens[: int(live)].tolist()):
        total += length
        out[row + 1] = total
    if tail == "last":
        out[int(live) + 1 :] = total
    return out


def _total(values: Mapping[str, Value]) -> int:
    """Room for the padded rows' stale lengths is left in int32; int64 reaches far beyond it."""
    return 2**31 - 2**16 if values["dtype"] == "int32" else 2**36


def build(case: Case) -> Sequence[Feed]:
    dtype, layout = str(case.values["dtype"]), LAYOUTS[str(case.values["layout"])]
    feeds: list[Feed] = []
    for step in case.steps:
        rows, live, spare = step["lens"], step["live"], case.values["spare"]
        assert isinstance(rows, list) and isinstance(live, int) and isinstance(spare, int)
        lens = np.array([*rows[:live], *[_STALE] * (len(rows) - live)], dtype=dtype)
        feeds.append(
            {
                "buf": Argument(np.full(len(rows) + spare + 1, -1, dtype)),
                "lens": Argument(lens, layout),
                "live": Argument(np.array(live, np.int32)),
                "tail": str(case.values["tail"]),
            }
        )
    return feeds


TARGET = Target(
    name="lens_to_indptr",
    summary="exclusive scan of lengths into a static buffer, padded rows by the engine's tail rule (vLLM, SGLang, LMDeploy)",
    implementation=lens_to_indptr,
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("tail", ("last", "zero")),
        IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
    ),
    stepped=(RowsAxis("lens", most=2**34, total=_total), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The live rows of a padded batch are those of the batch alone."""
    live = int(call.inputs["live"])
    alone = call.answer(
        {**call.inputs, "buf": np.full(live + 1, -1, call.inputs["buf"].dtype), "lens": call.inputs["lens"][:live].copy()}
    )
    if np.array_equal(call.outputs[: live + 1], alone):
        return None
    return f"rows 0..{live} are {call.outputs[: live + 1].tolist()}, without padding they are {alone.tolist()}"


@TARGET.law
def offsets_never_fall(call: LawCall) -> str | None:
    """Offsets are monotone, padded rows included, where the tail repeats the total."""
    if call.inputs["tail"] == "zero" or (np.diff(call.outputs) >= 0).all():
        return None
    return f"offsets fall: {call.outputs.tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(buf: torch.Tensor, lens: torch.Tensor, live: torch.Tensor, tail: str) -> torch.Tensor:
    """Stores the first offset as a scalar."""
    lens_to_indptr(buf, lens, live, tail)
    buf[0] = 0
    return buf


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: a stale tail; FlashInfer #2185")
def counts_padding(buf: torch.Tensor, lens: torch.Tensor, live: torch.Tensor, tail: str) -> torch.Tensor:
    """Scans the whole bucket: what an earlier, larger batch left in the padded rows is counted."""
    return lens_to_indptr(buf, lens, torch.full_like(live, lens.numel()), tail)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: SGLang leaves the tail as it was")
def leaves_tail(buf: torch.Tensor, lens: torch.Tensor, live: torch.Tensor, tail: str) -> torch.Tensor:
    """Writes the bucket's rows only; the buffer's tail keeps what it held."""
    kept = buf[lens.numel() + 1 :].clone()
    lens_to_indptr(buf, lens, live, tail)
    buf[lens.numel() + 1 :].copy_(kept)
    return buf


_counts: dict[int, int] = {}


@TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F2: the live count is read while warming up")
def live_from_warm_up(buf: torch.Tensor, lens: torch.Tensor, live: torch.Tensor, tail: str) -> torch.Tensor:
    """Remembers on the host how many rows were live when it last ran eagerly."""
    if not torch.cuda.is_current_stream_capturing():
        _counts[lens.numel()] = int(live)
    return lens_to_indptr(buf, lens, torch.full_like(live, _counts[lens.numel()]), tail)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: slice by a device count")
def slices_by_live(buf: torch.Tensor, lens: torch.Tensor, live: torch.Tensor, tail: str) -> torch.Tensor:
    """Takes the live rows with a slice, whose bound the host must read."""
    return lens_to_indptr(buf, torch.cat([lens[:live], lens[live:] * 0]), live, tail)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F12: the first offset is trusted from allocation")
def trusts_first(buf: torch.Tensor, lens: torch.Tensor, live: torch.Tensor, tail: str) -> torch.Tensor:
    """Never writes element 0: somebody else did."""
    first = buf[:1].clone()
    lens_to_indptr(buf, lens, live, tail)
    buf[:1].copy_(first)
    return buf
