"""`growing_workspace(...)`: a reduction in two stages through a workspace that all batches share, and that grows with them.

FlashInfer's `_get_cache_buf`, vLLM's `WorkspaceManager`, the scratch of a split-KV decode: one buffer a process, made larger at
the first batch that needs it. Graphs that were captured before hold the address of the smaller one: growing must not free it.

- `tokens`: `[batch]`, int32 or int64: what each row's answer begins with.
- `values`: `[batch, splits * chunk]`, same dtype, may be a strided view.
- `live` (host, int32 `[]`): how many rows are real; the others hold what an earlier batch left.
- `splits` (host): how many partial sums a row has. The workspace holds `rows * splits` of them.
- returns `[live]`: token, plus 1 times the first split's sum, plus 2 times the second one's, and so on. The caller's to keep.

Static: one set of input buffers for each bucket (the next power of two of `live`). The workspace is shared by eager calls and
by all graphs of a runner, one at a time; what it holds means nothing between two calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Runner, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target

Tensors = dict[str, torch.Tensor]
Key = tuple[Any, ...]
Captured = tuple[torch.cuda.CUDAGraph, Tensors, torch.Tensor]
ScratchOf = Callable[[int, int, torch.Tensor], torch.Tensor]

_STALE = 77

_workspace: dict[torch.dtype, torch.Tensor] = {}
_outgrown: list[torch.Tensor] = []


def scratch(rows: int, splits: int, like: torch.Tensor) -> torch.Tensor:
    """`[rows, splits]` of the workspace, which grows where it is too small; the outgrown one stays, for graphs hold it."""
    held = _workspace.get(like.dtype)
    if held is None or held.numel() < rows * splits:
        if held is not None:
            _outgrown.append(held)
        held = _workspace[like.dtype] = torch.empty(rows * splits, dtype=like.dtype, device=like.device)
    return held[: rows * splits].view(rows, splits)


def eager(
    tokens: torch.Tensor, values: torch.Tensor, live: torch.Tensor, splits: int, scratch_of: ScratchOf = scratch
) -> torch.Tensor:
    rows = int(live)
    return reduced(tokens[:rows], values[:rows], splits, scratch_of)


def make() -> Callable[..., torch.Tensor]:
    """A server that starts: there is no workspace yet, and nobody is left who uses the old one."""
    _workspace.clear()
    _outgrown.clear()
    return functools.partial(through_graphs, {}, scratch)


def reduced(tokens: torch.Tensor, values: torch.Tensor, splits: int, scratch_of: ScratchOf) -> torch.Tensor:
    rows, width = values.shape
    partial = scratch_of(rows, splits, values)
    torch.sum(values.reshape(rows, splits, width // splits), 2, dtype=values.dtype, out=partial)
    return tokens + (partial * torch.arange(1, splits + 1, dtype=values.dtype, device=values.device)).sum(1, dtype=values.dtype)


def bucket_of(rows: int) -> int:
    """The next power of two; an empty batch is padded to one row."""
    return 1 << max(0, rows - 1).bit_length()


def through_graphs(
    graphs: dict[Key, Captured],
    scratch_of: ScratchOf,
    tokens: torch.Tensor,
    values: torch.Tensor,
    live: torch.Tensor,
    splits: int,
) -> torch.Tensor:
    """One step: a graph for each bucket, width, dtype and number of splits."""
    rows = int(live)
    key = bucket_of(rows), values.shape[1], values.dtype, splits
    if key not in graphs:
        graphs[key] = captured(bucket_of(rows), tokens, values, splits, scratch_of)
    graph, static, out = graphs[key]
    static["tokens"][:rows].copy_(tokens[:rows])
    static["values"][:rows].copy_(values[:rows])
    graph.replay()
    return out[:rows].clone()


def captured(bucket: int, tokens: torch.Tensor, values: torch.Tensor, splits: int, scratch_of: ScratchOf) -> Captured:
    """A graph on input buffers of its own. Warming up makes the workspace large enough before the capture."""
    static = {"tokens": tokens.new_zeros(bucket), "values": values.new_zeros((bucket, values.shape[1]))}
    reduced(splits=splits, scratch_of=scratch_of, **static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = reduced(splits=splits, scratch_of=scratch_of, **static)
    return graph, static, out


def reference(tokens: np.ndarray, values: np.ndarray, live: np.ndarray, splits: int) -> np.ndarray:
    """Every value by the split that it is in."""
    width = values.shape[1]
    answers = [
        token + sum(value * (1 + column * splits // width) for column, value in enumerate(row))
        for token, row in zip(tokens[: int(live)].tolist(), values.tolist(), strict=False)
    ]
    return np.array(answers, values.dtype)


def build(case: Case) -> Sequence[Feed]:
    """Tokens are far apart from step to step, so that no wrong answer is by chance that of another step."""
    dtype, layout = np.dtype(str(case.values["dtype"])), LAYOUTS[str(case.values["layout"])]
    splits, chunk = _int(case.values["splits"]), _int(case.values["chunk"])
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps, 1):
        rows, live = step["seed"], _int(step["live"])
        assert isinstance(rows, list)
        tokens = 100_000 * number + np.arange(len(rows))
        values = (np.array(rows, np.int64).reshape(-1, 1) * 5 + np.arange(splits * chunk) * 3 + number) % 11
        tokens[live:], values[live:] = _STALE, _STALE
        feeds.append(
            {
                "tokens": Argument(tokens.astype(dtype)),
                "values": Argument(values.astype(dtype), layout),
                "live": Argument(np.array(live, np.int32), space=Space.HOST),
                "splits": splits,
            }
        )
    return feeds


def _int(value: Any) -> int:
    assert isinstance(value, int)
    return value


TARGET = Target(
    name="growing_workspace",
    summary="graphs that share a workspace which grows with the batch, and hold the outgrown one (FlashInfer, vLLM)",
    implementation=Runner(eager, make),
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        IntAxis("splits", simplest=1, most=16, common=(1, 2, 8)),
        IntAxis("chunk", simplest=1, most=64, common=(1, 3, 16)),
    ),
    stepped=(RowsAxis("seed", most=2**20), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """A padded batch has the answers of the batch alone."""
    live = int(call.inputs["live"])
    alone = call.answer({**call.inputs, **{name: call.inputs[name][:live].copy() for name in ("tokens", "values")}})
    return None if np.array_equal(alone, call.outputs) else f"{call.outputs.tolist()}, without padding {alone.tolist()}"


@TARGET.law
def one_split_is_a_sum(call: LawCall) -> str | None:
    """With one split, an answer is the row's token and all of its values."""
    out, live = call.answer({**call.inputs, "splits": 1}), int(call.inputs["live"])
    sums = (call.inputs["tokens"] + call.inputs["values"].sum(1))[:live]
    return None if np.array_equal(out, sums) else f"with one split {out.tolist()}, the rows' sums are {sums.tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


def _new_server(runner: Callable[..., torch.Tensor], *own: Any) -> Callable[..., torch.Tensor]:
    make()  # for what an earlier server has left to be gone
    return functools.partial(runner, {}, *own)


def _freeing(rows: int, splits: int, like: torch.Tensor) -> torch.Tensor:
    out = scratch(rows, splits, like)
    _outgrown.clear()
    return out


def _eager_that_frees(**arguments: Any) -> torch.Tensor:
    return eager(scratch_of=_freeing, **arguments)


def frees_the_outgrown() -> Callable[..., torch.Tensor]:
    """Frees the smaller workspace as soon as there is a larger one; the graphs that hold it replay through freed memory."""
    return _new_server(through_graphs, _freeing)


TARGET.variant(Verdict.DANGLING_BUFFER, source="https://github.com/flashinfer-ai/flashinfer/issues/4398")(
    Runner(_eager_that_frees, frees_the_outgrown)
)


def _keeping_one(rows: int, splits: int, like: torch.Tensor) -> torch.Tensor:
    out = scratch(rows, splits, like)
    del _outgrown[:-1]
    return out


def _eager_that_keeps_one(**arguments: Any) -> torch.Tensor:
    return eager(scratch_of=_keeping_one, **arguments)


def keeps_the_last_outgrown() -> Callable[..., torch.Tensor]:
    """Keeps outgrown workspaces in a bounded cache: the second growth frees what the first graph holds."""
    return _new_server(through_graphs, _keeping_one)


TARGET.variant(Verdict.DANGLING_BUFFER, source="https://github.com/ROCm/aiter/pull/4587")(
    Runner(_eager_that_keeps_one, keeps_the_last_outgrown)
)


def _copies_one_input(
    graphs: dict[Key, Captured], tokens: torch.Tensor, values: torch.Tensor, live: torch.Tensor, splits: int
) -> torch.Tensor:
    rows = int(live)
    key = bucket_of(rows), values.shape[1], values.dtype, splits
    if key not in graphs:
        graphs[key] = captured(bucket_of(rows), tokens, values, splits, scratch)
    graph, static, out = graphs[key]
    static["tokens"][:rows].copy_(tokens[:rows])
    if values.shape[1] != static["values"].shape[1]:
        raise ValueError("values are wider than the buffer")
    graph.replay()
    return out[:rows].clone()


def checks_one_input() -> Callable[..., torch.Tensor]:
    """Copies the tokens into the static buffers; of the values it checks the size, and copies nothing."""
    return _new_server(_copies_one_input)


TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/flashinfer-ai/flashinfer/pull/2185")(
    Runner(eager, checks_one_input)
)


def _answered_in_the_workspace(
    graphs: dict[Key, Captured], tokens: torch.Tensor, values: torch.Tensor, live: torch.Tensor, splits: int
) -> torch.Tensor:
    rows = int(live)
    answers = through_graphs(graphs, scratch, tokens, values, live, splits)
    return scratch(bucket_of(rows), splits, values)[:rows, 0].copy_(answers)


def answers_in_the_workspace() -> Callable[..., torch.Tensor]:
    """Answers with a part of the workspace: the next call overwrites what the caller still holds."""
    return _new_server(_answered_in_the_workspace)


TARGET.variant(Verdict.DIVERGENCE, "aliased_output", "https://github.com/sgl-project/sglang/pull/23037")(
    Runner(eager, answers_in_the_workspace)
)


def _for_as_many_as_count(rows: int, splits: int, like: torch.Tensor) -> torch.Tensor:
    counted = int(torch.ones((rows, splits), dtype=like.dtype, device=like.device).sum())
    return scratch(counted // splits, splits, like)


def asks_the_device_how_large() -> Callable[..., torch.Tensor]:
    """Makes the workspace as large as a count on the device, which the host reads."""
    return _new_server(through_graphs, _for_as_many_as_count)


TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/vllm-project/vllm-ascend/pull/16052")(
    Runner(eager, asks_the_device_how_large)
)


def _zeroed_by_a_list(rows: int, splits: int, like: torch.Tensor) -> torch.Tensor:
    out = scratch(rows, splits, like)
    return out.copy_(torch.tensor([[0] * splits] * rows, dtype=like.dtype))


def cleared_from_the_host() -> Callable[..., torch.Tensor]:
    """Clears the workspace by copying zeros from the host."""
    return _new_server(through_graphs, _zeroed_by_a_list)


TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/pytorch/pytorch/pull/172156")(
    Runner(eager, cleared_from_the_host)
)
