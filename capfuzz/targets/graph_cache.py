"""`graph_cache(...)`: a decode step answered through graphs that are found by a key; the key is what is under test.

What an engine's graph runner does: vLLM's dispatcher (`BatchDescriptor`), SGLang's and TensorRT-LLM's `cuda_graph_runner`. A
batch is padded to a bucket. A graph is captured at the first batch of its key and replayed for every later one. What the
captured code takes from the host must be in the key: the bucket, the width and dtype of its buffers, how far the kernel looks,
whether it may leave out its mask, how many adapters there are.

- `tokens`: `[batch]`, int32 or int64: what each row's answer begins with.
- `values`: `[batch, width]`, same dtype, may be a strided view. Row r has `lens[r]` of them.
- `lens`: `[batch]`, int64, on the device, and `lens_cpu`, the host's copy, of which the key is made.
- `live` (host, int32 `[]`): how many rows are real. The others hold what an earlier batch left, in all four.
- `adapters` (host, int32 `[]`): how many adapters the batch has. Each adds the first value of a row to its answer.
- returns `answers` `[live]` (token, plus the row's values, plus the adapters' share), `total` `[1]` (int64, their sum) and
  `length` `[1]` (int64, the sum of the lengths). Padded rows of a bucket add nothing to the two sums.

Static: one set of buffers for each graph. Answers are the caller's to keep.
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
Captured = tuple[torch.cuda.CUDAGraph, Tensors, Tensors]
KeyOf = Callable[[torch.Tensor, int, int, bool, int], Key]

_STRIDE = 16  # the kernel looks at whole tiles of so many values
_STALE_TOKEN, _STALE_VALUE, _STALE_LENGTH = 77_000, 5, 3


def eager(
    tokens: torch.Tensor,
    values: torch.Tensor,
    lens: torch.Tensor,
    lens_cpu: torch.Tensor,
    live: torch.Tensor,
    adapters: torch.Tensor,
) -> Tensors:
    rows = int(live)
    bound, is_full = plan(lens_cpu[:rows], values.shape[1])
    return decode(tokens[:rows], values[:rows], lens[:rows], bound, is_full, int(adapters))


def make() -> Callable[..., Tensors]:
    """Graphs by everything that the captured code takes from the host."""
    return functools.partial(through_graphs, {}, key_of, captured, fill_static)


def key_of(values: torch.Tensor, rows: int, bound: int, is_full: bool, adapters: int) -> Key:
    return bucket_of(rows), values.shape[1], values.dtype, bound, is_full, adapters


def bucket_of(rows: int) -> int:
    """The next power of two; an empty batch is padded to one row."""
    return 1 << max(0, rows - 1).bit_length()


def plan(lens_cpu: torch.Tensor, width: int) -> tuple[int, bool]:
    """How many values of a row the kernel looks at, and whether every row has as many, so that no mask is needed."""
    lens = lens_cpu.tolist()
    bound = min(width, -(-max(lens, default=0) // _STRIDE) * _STRIDE)
    return bound, min(lens, default=0) == bound


def decode(tokens: torch.Tensor, values: torch.Tensor, lens: torch.Tensor, bound: int, is_full: bool, adapters: int) -> Tensors:
    seen = values[:, :bound]
    if not is_full:
        seen = seen * (torch.arange(bound, device=values.device) < lens.unsqueeze(1))
    answers = tokens + seen.sum(1, dtype=values.dtype)
    if adapters:
        answers = answers + values[:, 0] * adapters
    return {"answers": answers, "total": answers.sum(0, keepdim=True), "length": lens.sum(0, keepdim=True)}


def through_graphs(
    graphs: dict[Key, Captured],
    key_of: KeyOf,
    capture: Callable[..., Captured],
    fill_static: Callable[[Tensors, Tensors, int], None],
    tokens: torch.Tensor,
    values: torch.Tensor,
    lens: torch.Tensor,
    lens_cpu: torch.Tensor,
    live: torch.Tensor,
    adapters: torch.Tensor,
) -> Tensors:
    """One step: the graph of its key is captured where there is none yet, its buffers are filled, and it is replayed."""
    rows = int(live)
    bound, is_full = plan(lens_cpu[:rows], values.shape[1])
    key = key_of(values, rows, bound, is_full, int(adapters))
    inputs = {"tokens": tokens, "values": values, "lens": lens}
    if key not in graphs:
        graphs[key] = capture(inputs, bucket_of(rows), bound, is_full, int(adapters))
    graph, static, out = graphs[key]
    fill_static(static, inputs, rows)
    graph.replay()
    return {"answers": out["answers"][:rows].clone(), "total": out["total"].clone(), "length": out["length"].clone()}


def captured(inputs: Tensors, bucket: int, bound: int, is_full: bool, adapters: int) -> Captured:
    """A graph on buffers of its own."""
    static = {
        name: torch.zeros((bucket, *like.shape[1:]), dtype=like.dtype, device=like.device) for name, like in inputs.items()
    }
    decode(bound=bound, is_full=is_full, adapters=adapters, **static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode(bound=bound, is_full=is_full, adapters=adapters, **static)
    return graph, static, out


def fill_static(static: Tensors, inputs: Tensors, rows: int) -> None:
    """The real rows, and nothing in the rows behind them, where a larger batch may have been."""
    static["tokens"][:rows].copy_(inputs["tokens"][:rows])
    static["values"][:rows].copy_(inputs["values"][:rows])
    static["lens"][:rows].copy_(inputs["lens"][:rows])
    static["tokens"][rows:].zero_()
    static["values"][rows:].zero_()
    static["lens"][rows:].zero_()


def reference(
    tokens: np.ndarray, values: np.ndarray, lens: np.ndarray, lens_cpu: np.ndarray, live: np.ndarray, adapters: np.ndarray
) -> dict[str, np.ndarray]:
    """Row by row, in Python's integers."""
    answers = []
    for token, row, length in zip(tokens[: int(live)].tolist(), values.tolist(), lens.tolist(), strict=False):
        answers.append(token + sum(row[:length]) + int(adapters) * row[0])
    return {
        "answers": np.array(answers, values.dtype),
        "total": np.array([sum(answers)], np.int64),
        "length": np.array([sum(lens[: int(live)].tolist())], np.int64),
    }


def build(case: Case) -> Sequence[Feed]:
    """Tokens are far apart from step to step, so that no wrong answer is by chance that of another step."""
    dtype, layout = np.dtype(str(case.values["dtype"])), LAYOUTS[str(case.values["layout"])]
    width = case.values["width"]
    assert isinstance(width, int)
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps, 1):
        rows, live = step["lens"], step["live"]
        assert isinstance(rows, list) and isinstance(live, int)
        row, column = np.arange(len(rows)).reshape(-1, 1), np.arange(width)
        lens = np.minimum(np.array(rows, np.int64), width)
        tokens = 10_000 * number + np.arange(len(rows))
        values = 1 + (row * 5 + column * 3 + number) % 7
        lens[live:], tokens[live:], values[live:] = min(_STALE_LENGTH, width), _STALE_TOKEN, _STALE_VALUE
        feeds.append(
            {
                "tokens": Argument(tokens.astype(dtype)),
                "values": Argument(values.astype(dtype), layout),
                "lens": Argument(lens),
                "lens_cpu": Argument(lens, space=Space.HOST),
                "live": Argument(np.array(live, np.int32), space=Space.HOST),
                "adapters": Argument(np.array(step["adapters"], np.int32), space=Space.HOST),
            }
        )
    return feeds


TARGET = Target(
    name="graph_cache",
    summary="a decode step through graphs that are captured once for each key and found by it (vLLM, SGLang, TensorRT-LLM)",
    implementation=Runner(eager, make),
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        IntAxis("width", simplest=1, most=256, common=(1, 16, 33, 64)),
    ),
    stepped=(RowsAxis("lens", most=256), StepIntAxis("live", up_to_batch=True), StepIntAxis("adapters", common=(1, 3))),
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------

_BY_ROW = ("tokens", "values", "lens", "lens_cpu")


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """A padded batch has the answers and sums of the batch alone."""
    live = int(call.inputs["live"])
    alone = call.answer({**call.inputs, **{name: call.inputs[name][:live].copy() for name in _BY_ROW}})
    wrong = [name for name, rows in alone.items() if not np.array_equal(call.outputs[name], rows)]
    return f"{', '.join(wrong)}: {call.outputs}, without padding {alone}" if wrong else None


@TARGET.law
def rows_are_independent(call: LawCall) -> str | None:
    """The live rows in another order have the same answers in that order, and the same sums."""
    live = int(call.inputs["live"])
    turned = {n: np.concatenate([call.inputs[n][:live][::-1], call.inputs[n][live:]]) for n in _BY_ROW}
    out = call.answer({**call.inputs, **turned})
    if np.array_equal(out["answers"][::-1], call.outputs["answers"]) and out["total"] == call.outputs["total"]:
        return None
    return f"answers are {call.outputs['answers'].tolist()}, from turned rows {out['answers'][::-1].tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


def answers_through(make_faulty: Callable[[], Callable[..., Tensors]]) -> Runner:
    return Runner(eager, make_faulty)


def _without_bound(values: torch.Tensor, rows: int, bound: int, is_full: bool, adapters: int) -> Key:
    return bucket_of(rows), values.shape[1], values.dtype, is_full, adapters


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/huggingface/transformers/pull/45323")
@answers_through
def bound_left_out() -> Callable[..., Tensors]:
    """Keys graphs by the padded sizes alone: a batch of longer rows is given the graph of shorter ones."""
    return functools.partial(through_graphs, {}, _without_bound, captured, fill_static)


def _without_full(values: torch.Tensor, rows: int, bound: int, is_full: bool, adapters: int) -> Key:
    return bucket_of(rows), values.shape[1], values.dtype, bound, adapters


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/sgl-project/sglang/pull/21987")
@answers_through
def uniform_left_out() -> Callable[..., Tensors]:
    """Does not tell uniform batches from ragged ones, whose rows need the mask."""
    return functools.partial(through_graphs, {}, _without_full, captured, fill_static)


def _without_adapters(values: torch.Tensor, rows: int, bound: int, is_full: bool, adapters: int) -> Key:
    return bucket_of(rows), values.shape[1], values.dtype, bound, is_full


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/sgl-project/sglang/pull/23727")
@answers_through
def adapters_left_out() -> Callable[..., Tensors]:
    """Keys graphs without the adapters: as many as came first are applied to all."""
    return functools.partial(through_graphs, {}, _without_adapters, captured, fill_static)


def _without_dtype(values: torch.Tensor, rows: int, bound: int, is_full: bool, adapters: int) -> Key:
    return bucket_of(rows), values.shape[1], bound, is_full, adapters


@TARGET.variant(Verdict.DIVERGENCE, "dtype", "https://github.com/flashinfer-ai/flashinfer/pull/4146")
@answers_through
def dtype_left_out() -> Callable[..., Tensors]:
    """Keys graphs without the dtype; filling the buffers converts in silence."""
    return functools.partial(through_graphs, {}, _without_dtype, captured, fill_static)


def _lengths_of_one(static: Tensors, inputs: Tensors, rows: int) -> None:
    fill_static(static, inputs, rows)
    static["lens"][rows:].fill_(1)


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/sgl-project/sglang/pull/1789")
@answers_through
def padded_rows_have_length_one() -> Callable[..., Tensors]:
    """Pads lengths with 1, as some kernels need it, and counts the padded rows."""
    return functools.partial(through_graphs, {}, key_of, captured, _lengths_of_one)


def _captured_on_a_copy(inputs: Tensors, bucket: int, bound: int, is_full: bool, adapters: int) -> Captured:
    _, static, _ = captured(inputs, bucket, bound, is_full, adapters)
    padded = {**static, "tokens": static["tokens"].clone()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode(bound=bound, is_full=is_full, adapters=adapters, **padded)
    return graph, static, out


@TARGET.variant(Verdict.DANGLING_BUFFER, source="https://github.com/sgl-project/sglang/pull/26019")
@answers_through
def captures_on_a_copy() -> Callable[..., Tensors]:
    """Captures with a new tensor of tokens that nobody keeps, and fills one that no graph reads."""
    return functools.partial(through_graphs, {}, key_of, _captured_on_a_copy, fill_static)


def _captured_with_a_list(inputs: Tensors, bucket: int, bound: int, is_full: bool, adapters: int) -> Captured:
    _, static, _ = captured(inputs, bucket, bound, is_full, adapters)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = torch.tensor(list(range(bucket)), device=static["tokens"].device)
        out = decode(bound=bound, is_full=is_full, adapters=adapters, **{n: rows_of[rows] for n, rows_of in static.items()})
    return graph, static, out


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "https://github.com/pytorch/pytorch/issues/185074")
@answers_through
def makes_a_table_in_capture() -> Callable[..., Tensors]:
    """Makes its row numbers of a Python list, in the first call of a key, which is captured."""
    return functools.partial(through_graphs, {}, key_of, _captured_with_a_list, fill_static)


def _kept(graphs: dict[Key, Captured], **arguments: Any) -> Tensors:
    out = through_graphs(graphs, key_of, captured, fill_static, **arguments)
    rows = int(arguments["live"])
    bound, is_full = plan(arguments["lens_cpu"][:rows], arguments["values"].shape[1])
    _, _, static = graphs[key_of(arguments["values"], rows, bound, is_full, int(arguments["adapters"]))]
    return {**out, "answers": static["answers"][:rows]}


@TARGET.variant(Verdict.DIVERGENCE, "aliased_output", "https://github.com/sgl-project/sglang/pull/23037")
@answers_through
def answers_in_the_graphs_memory() -> Callable[..., Tensors]:
    """Gives the caller the graph's own answers, which its next replay overwrites."""
    return functools.partial(_kept, {})
