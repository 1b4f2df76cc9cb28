"""`metadata_builders(...)`: a batch is staged into its bucket, and several attention builders build from it one after another.

The builders are vLLM's, in `builder_chain`. `prepare` runs on the host before the capture and before each replay, and the graph
reads the buffers that it has filled:

- for a replay (and eagerly) the live batch is staged, and each builder builds from it;
- for the capture it is a dummy batch of full requests, with offsets of its own on the host, twice over: to warm up and to
  capture. `unified` then fills shared device buffers with what its kernels are captured with, and declares which.

The arguments:

- `new_seq_lens`: `[bucket]`, int32 or int64, device; `new_slots`: `[bucket * query_len]` int64, device; `new_block_table`:
  `[bucket, widest]` int32, device. What is behind the live rows and tokens is stale.
- `query_start_loc_cpu`: `[bucket + 1]` int32, pinned: the runner's mirror. Padded rows repeat the total.
- `live`, `columns`: int32 `[]`, host: how many rows are real, and how wide this batch's block table is. `is_prefilling`:
  `[bucket]` bool, host: whose prompt is not yet computed.
- persistent, device, staged: `query_start_loc` (`[bucket + 1]` int32), `seq_lens` (`[bucket]` int32; padded rows have
  `seq_pad`, 0 in vLLM, 1 in SGLang), `slots` (`[bucket * query_len]` int64; -1 from the last real token on), `block_table`
  (`[bucket, widest + 1]` int32; padded rows are 0, live rows keep what is behind the batch's width).
- persistent, device, the builders' own: `indexer_lens` and `gdn_lens` (`[bucket]` int32), `split` (`[4]` int32).
- host: `query_len` (the most tokens a request has in this graph, an upper bound), `threshold`, `uniform` and
  `short_are_decodes` (of the split), `order`, and `path`: `by_mode`, or for the laws `capture` or `replay`, to take that one
  eagerly and tell what it declares and what it has left in the host's offsets.
- returns a dict of each builder's results.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Feed, LawCall, Mode, TwoPart, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.builder_chain import (
    Builder,
    Built,
    CommonMetadata,
    Share,
    Tensors,
    build_all,
    dummy_offsets,
    gdn,
    indexer,
    metadata_builders,
    prepare,
    unified,
)
from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.model import Target


def reference(**inputs: Any) -> dict[str, dict[str, np.ndarray]]:
    """Request by request, from the live ones; each builder from the batch itself."""
    offsets, live, most = inputs["query_start_loc_cpu"].tolist(), int(inputs["live"]), inputs["query_len"]
    rows, tokens = len(offsets) - 1, offsets[live]
    queries = [offsets[row + 1] - offsets[row] if row < live else 0 for row in range(rows)]
    lens = [int(inputs["new_seq_lens"][row]) if row < live else inputs["seq_pad"] for row in range(rows)]
    flags, rules = inputs["is_prefilling"].tolist(), (inputs["threshold"], inputs["uniform"], inputs["short_are_decodes"])
    split = _split(queries, flags, tokens, most, *rules)
    table = [[offsets[row] + column if column < queries[row] else -1 for column in range(most)] for row in range(rows)]
    pages, width = np.zeros_like(inputs["block_table"]), int(inputs["columns"])
    pages[:live, :width] = inputs["new_block_table"][:live, :width]
    pages[:live, width:] = inputs["block_table"][:live, width:]
    results: dict[str, dict[str, np.ndarray]] = {
        "unified": {
            "query_start_loc": np.array(offsets[: live + 1] + [tokens] * (rows - live), np.int32),
            "seq_lens": np.array(lens, np.int32),
            "block_table": pages,
            "slots": np.concatenate([inputs["new_slots"][:tokens], np.full(rows * most - tokens, -1)]),
            "context_lens": np.array([length - query for length, query in zip(lens, queries, strict=True)], np.int32),
        },
        "indexer": {
            "split": np.array(split, np.int32),
            "decode_lens": np.array([length if row < split[0] else 0 for row, length in enumerate(lens)], np.int32),
        },
        "gdn": {"lens": np.array(queries, np.int32), "tokens": np.array(table, np.int64).reshape(rows, most)},
    }
    return {name: results[name] for name in inputs["order"].split(",")}


def _split(
    queries: list[int], flags: list[bool], tokens: int, most: int, threshold: int, uniform: bool, short_are_decodes: bool
) -> tuple[int, int, int, int]:
    """Walks over the requests to the first prefill."""
    first = queries[0] if queries else 0
    of_one_length = uniform and (most > 1 or threshold > 1 or not short_are_decodes)  # else nobody looks
    decodes = decode_tokens = 0
    for query, flag in zip(queries, flags, strict=True):
        is_decode = query in (first, 0) if of_one_length else query <= threshold
        if first > threshold or not is_decode or (flag and not short_are_decodes):
            return decodes, len(queries) - decodes, decode_tokens, tokens - decode_tokens
        decodes, decode_tokens = decodes + 1, decode_tokens + query
    return len(queries), 0, tokens, 0


_STALE = 7  # the length and the page that an earlier batch left in padded rows
_WIDEST = 64


def build(case: Case) -> Sequence[Feed]:
    values = case.values
    host = {name: value for name in ("query_len", "threshold", "seq_pad") if isinstance(value := values[name], int)}
    dtype, layout, most = str(values["dtype"]), LAYOUTS[str(values["layout"])], host["query_len"]
    widths = [columns for step in case.steps if isinstance(columns := step["columns"], int)]
    if max(widths) > _WIDEST:
        raise InvalidCaseError(f"case.steps[{widths.index(max(widths))}].columns", f"must be at most {_WIDEST}")
    feeds: list[Feed] = []
    for number, (step, columns) in enumerate(zip(case.steps, widths, strict=True)):
        queries, contexts, live = step["queries"], step["contexts"], step["live"]
        assert isinstance(queries, list) and isinstance(contexts, list) and isinstance(live, int)
        rows, lens, context = len(queries), np.array(queries, np.int32) % (most + 1), np.array(contexts, np.int32)
        seq_lens, pages = (
            (lens + context).astype(dtype),
            np.arange(rows * max(widths), dtype=np.int32).reshape(rows, max(widths)),
        )
        seq_lens[live:], lens[live:] = _STALE, 0
        owned = {"seq_lens": -1, "indexer_lens": -2, "gdn_lens": -3}
        feeds.append(
            {
                "new_seq_lens": Argument(seq_lens, layout),
                "new_slots": Argument(np.arange(rows * most) * 3 + number, layout),
                "new_block_table": Argument(pages, layout),
                "query_start_loc_cpu": Argument(np.cumsum([0, *lens], dtype=np.int32), space=Space.PINNED),
                "is_prefilling": Argument((context == 0) & (np.arange(rows) < live), space=Space.HOST),
                "live": Argument(np.array(live, np.int32), space=Space.HOST),
                "columns": Argument(np.array(columns, np.int32), space=Space.HOST),
                "query_start_loc": Argument(np.full(rows + 1, -1, np.int32)),
                "block_table": Argument(np.full((rows, max(widths) + 1), _STALE, np.int32)),
                "slots": Argument(np.full(rows * most, _STALE, np.int64)),
                **{name: Argument(np.full(rows, left, np.int32)) for name, left in owned.items()},
                "split": Argument(np.full(4, -4, np.int32)),
                **host,
                "uniform": values["uniform"] == "yes",
                "short_are_decodes": values["short_extends"] == "decodes",
                "order": str(values["order"]),
                "path": "by_mode",
            }
        )
    return feeds


TARGET = Target(
    name="metadata_builders",
    summary="a padded batch staged for several attention builders that share one metadata object (vLLM's capture protocol)",
    implementation=TwoPart(prepare, metadata_builders),
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("int32", "int64")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("order", tuple(map(",".join, itertools.permutations(("unified", "indexer", "gdn"))))),
        ChoiceAxis("uniform", ("no", "yes")),
        ChoiceAxis("short_extends", ("decodes", "prefills")),
        IntAxis("query_len", simplest=1, most=8, common=(1, 2, 4)),
        IntAxis("threshold", simplest=1, most=8, common=(1, 2, 4)),
        IntAxis("seq_pad", simplest=0, most=1, common=(0, 1)),
    ),
    stepped=(
        RowsAxis("queries", most=8),  # tokens of each request, modulo query_len + 1
        RowsAxis("contexts", most=512),  # what is computed of each request; a request that has none is at its prompt
        StepIntAxis("live", up_to_batch=True),
        StepIntAxis("columns", common=(1, 2, 3)),
    ),
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------

_ROWS = ("new_seq_lens", "new_block_table", "block_table", "seq_lens", "indexer_lens", "gdn_lens", "is_prefilling")
_TOKENS = ("new_slots", "slots")
_OFFSETS = ("query_start_loc", "query_start_loc_cpu")
# Which shared device fields a result is made of, and whether the graph reads them: after all builders, not in its own build.
_READS: dict[tuple[str, str], tuple[tuple[str, ...], bool]] = {
    ("unified", "query_start_loc"): (("query_start_loc",), True),
    ("unified", "seq_lens"): (("seq_lens",), True),
    ("unified", "block_table"): (("block_table",), True),
    ("unified", "slots"): (("slots",), True),
    ("unified", "context_lens"): (("query_start_loc", "seq_lens"), True),
    ("indexer", "split"): ((), False),
    ("indexer", "decode_lens"): (("seq_lens",), False),
    ("gdn", "lens"): (("query_start_loc",), False),
    ("gdn", "tokens"): (("query_start_loc",), True),
}
_answers: dict[str, Any] = {}


def captured(call: LawCall, order: Sequence[str]) -> Any:
    """What the capture's path gives, for some of the builders. The laws of one case share it: it is what they cost."""
    if _answers.get("inputs") is not call.inputs:
        _answers.clear()
        _answers["inputs"] = call.inputs
    chain = ",".join(order)
    if chain not in _answers:
        _answers[chain] = call.answer({**call.inputs, "order": chain, "path": "capture"})
    return _answers[chain]


def dummy(call: LawCall) -> dict[str, Any]:
    """The inputs that would stage the batch of the capture."""
    rows, most = len(call.inputs["seq_lens"]), call.inputs["query_len"]
    return {
        **call.inputs,
        "new_seq_lens": np.full(rows, most),
        "new_slots": np.full(rows * most, -1),
        "new_block_table": np.zeros_like(call.inputs["block_table"]),
        "columns": call.inputs["block_table"].shape[1],
        "query_start_loc_cpu": np.arange(rows + 1, dtype=np.int32) * most,
        "is_prefilling": np.zeros(rows, bool),
        "live": rows,
    }


@TARGET.law
def cpu_offsets_are_kept(call: LawCall) -> str | None:
    """On either path, after all builders of any order, the host's offsets are byte for byte what they were before."""
    order = call.inputs["order"].split(",")
    replayed = call.answer({**call.inputs, "path": "replay"})
    for path, before, after in (
        ("capture", dummy(call)["query_start_loc_cpu"], captured(call, order)["query_start_loc_cpu"]),
        ("replay", call.inputs["query_start_loc_cpu"], replayed["query_start_loc_cpu"]),
    ):
        if before.dtype != after.dtype or before.tobytes() != after.tobytes():
            return f"preparing for {path}, the host's offsets {before.tolist()} became {after.tolist()}"
    return None


@TARGET.law
def each_builds_as_if_alone(call: LawCall) -> str | None:
    """In any order, a builder has built what it builds alone, but for device fields that an earlier one declares to clobber."""
    order = call.inputs["order"].split(",")
    for place, builder in enumerate(order):
        chain, alone = captured(call, order[: place + 1]), captured(call, [builder])[builder]
        declared = {field for other in order[:place] for field in chain["clobbers"][other].split()}
        for name, result in alone.items():
            if not declared & set(_READS[builder, name][0]) and not np.array_equal(chain[builder][name], result):
                return f"behind {order[:place]}, {builder} has {name} {chain[builder][name].tolist()}, alone {result.tolist()}"
    return None


@TARGET.law
def later_builders_leave_results(call: LawCall) -> str | None:
    """What a builder has built stays, but for shared device fields that a later builder declares to clobber."""
    order = call.inputs["order"].split(",")
    end = captured(call, order)
    for place, builder in enumerate(order[:-1]):
        declared = {field for other in order[place + 1 :] for field in end["clobbers"][other].split()}
        for name, result in captured(call, order[: place + 1])[builder].items():
            fields, in_graph = _READS[builder, name]
            excused = in_graph and declared & set(fields)
            if not excused and not np.array_equal(end[builder][name], result):
                return f"{builder} had built {name} {result.tolist()}, at the end it has {end[builder][name].tolist()}"
    return None


@TARGET.law
def a_full_batch_is_captured(call: LawCall) -> str | None:
    """Alone, a builder captures what the reference gives for full requests; `unified` with lengths of 1 and offsets of 0."""
    expected = reference(**dummy(call))
    for name, value in (("query_start_loc", 0), ("seq_lens", 1), ("context_lens", 1)):
        expected["unified"][name] = np.full_like(expected["unified"][name], value)
    for builder, results in expected.items():
        for name, result in captured(call, [builder])[builder].items():
            if not np.array_equal(result, results[name]):
                return f"{builder} captures {name} {result.tolist()}, not {results[name].tolist()}"
    return None


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The live rows of a padded batch are those of the batch alone."""
    live, most = int(call.inputs["live"]), call.inputs["query_len"]
    if live == len(call.inputs["seq_lens"]):
        return None
    tokens = int(call.inputs["query_start_loc_cpu"][live])
    lengths = dict.fromkeys(_ROWS, live) | dict.fromkeys(_TOKENS, live * most) | dict.fromkeys(_OFFSETS, live + 1)
    alone = call.answer({**call.inputs, **{name: call.inputs[name][:length].copy() for name, length in lengths.items()}})
    for builder, results in alone.items():
        for name, rows in results.items():
            padded = call.outputs[builder][name]
            if name == "split":  # how many of the padded rows are decodes says nothing of the live ones
                padded, rows = padded[2:], rows[2:]
            kept = tokens if name == "slots" else len(rows)
            if not np.array_equal(padded[:kept], rows[:kept]):
                return f"{builder} has {name} {padded[:kept].tolist()}, without padding {rows[:kept].tolist()}"
    return None


@TARGET.law
def the_split_is_the_batch(call: LawCall) -> str | None:
    """Decodes and prefills add up to the requests and to the tokens of the bucket."""
    decodes, prefills, decode_tokens, prefill_tokens = call.outputs["indexer"]["split"].tolist()
    offsets = call.inputs["query_start_loc_cpu"]
    if decodes + prefills != len(offsets) - 1 or decode_tokens + prefill_tokens != offsets[-1]:
        return f"split {call.outputs['indexer']['split'].tolist()} of offsets {offsets.tolist()}"
    return None if decode_tokens == offsets[decodes] else f"{decodes} decodes have {offsets[decodes]} tokens"


# -- faulty variants ---------------------------------------------------------------------------------------------------


def in_prepare(fault: Callable[..., dict[str, Built]]) -> TwoPart:
    """The shipped graph behind another preparation."""

    def body(built: dict[str, Built], **inputs: Any) -> dict[str, Any]:
        return metadata_builders(built, **inputs)

    body.__name__, body.__doc__ = fault.__name__, fault.__doc__
    return TwoPart(fault, body)


def in_body(fault: Callable[..., dict[str, Any]]) -> TwoPart:
    """Another graph behind the shipped preparation."""
    return TwoPart(prepare, fault)


def replaced(mode: Mode, inputs: Mapping[str, Any], share: Share = copy.copy, **others: Builder) -> dict[str, Built]:
    """The shipped preparation with other builders for some."""
    return build_all(mode, {"unified": unified, "indexer": indexer, "gdn": gdn, **others}, inputs, share)


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_exception", "fault class F5; https://github.com/vllm-project/vllm/pull/51585")
@in_prepare
def zeroes_cpu_offsets(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Clears the host's offsets with the device's for the capture: another builder asserts that requests have tokens."""
    return replaced(mode, inputs, unified=_zeroing)


def _zeroing(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    if is_capture:
        common.query_start_loc_cpu.zero_()
    return unified(common, inputs, is_capture)


@TARGET.variant(Verdict.DIVERGENCE, "shape", "fault class F11; https://github.com/vllm-project/vllm/pull/51585")
@in_prepare
def captures_the_wrong_branch(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Clears the host's offsets of speculative graphs, and nobody asserts: GDN captures its other branch in silence."""
    return replaced(mode, inputs, unified=_zeroing if inputs["query_len"] > 1 else unified, indexer=_unasserting)


def _unasserting(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    """A builder that takes offsets of zero for an empty batch."""
    tokens = int(common.query_start_loc_cpu[-1])
    return indexer(dataclasses.replace(common, num_tokens=tokens), inputs, is_capture)


@TARGET.variant(Verdict.INVARIANT, "cpu_offsets_are_kept", "fault class F5: llm_base_proposer adds to a shared host field")
@in_prepare
def shifts_cpu_offsets(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Moves the host's offsets for a token that it drafts, in place: every length stays, and so does every branch."""
    return replaced(mode, inputs, gdn=_shifting)


def _shifting(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    built = gdn(common, inputs, is_capture)
    if is_capture:
        common.query_start_loc_cpu.add_(1)
    return built


@TARGET.variant(Verdict.INVARIANT, "each_builds_as_if_alone", "fault class F5: triton_attn's seq_lens.fill_(1); vLLM #53821")
@in_prepare
def fills_shared_lengths(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Fills the shared lengths on the device for its capture, and does not declare it."""
    return replaced(mode, inputs, unified=lambda *given: {**unified(*given), "clobbers": "query_start_loc"})


@TARGET.variant(Verdict.INVARIANT, "later_builders_leave_results", "fault class F5: a buffer of another builder is scratch")
@in_prepare
def scratches_in_results(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Takes a buffer that another builder has filled for scratch space, for its capture."""
    return replaced(mode, inputs, indexer=_scratching)


def _scratching(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    if is_capture:
        inputs["gdn_lens"].zero_()
    return indexer(common, inputs, is_capture)


@dataclasses.dataclass
class WithCache(CommonMetadata):
    """A shared object with room for what builders derive. Shallow copies share that, too."""

    derived: Tensors


_derived: Tensors = {}  # of the object that the runner keeps with the graph


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "fault class F10: vLLM's token_to_req_indices, kept on the object")
@in_prepare
def caches_on_the_shared_object(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Keeps the query lengths that it derives on the shared object, which lives on from the warm-up to every replay."""
    if mode is Mode.EAGER:  # a new object
        _derived.clear()
    return replaced(mode, inputs, lambda common: WithCache(**vars(common), derived=_derived), gdn=_caching)


def _caching(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    built = gdn(common, inputs, is_capture)
    assert isinstance(common, WithCache)
    built["lens"].copy_(common.derived.setdefault("query_lens", built["lens"].clone()))
    return built


@TARGET.variant(Verdict.DIVERGENCE, "host_state", "fault class F5: capture writes to a host mirror that is not its own")
@in_prepare
def dummy_in_the_mirror(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Leaves the dummy batch's offsets in the runner's mirror."""
    built = prepare(mode, **inputs)
    if mode is Mode.CAPTURE:
        inputs["query_start_loc_cpu"].copy_(dummy_offsets(inputs))
    return built


@TARGET.variant(Verdict.DANGLING_BUFFER, source="fault class F3: a fresh buffer for each build; vLLM #36070")
@in_prepare
def fresh_buffer(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Copies the indexer's lengths into a new tensor for each batch: the graph reads the first one's."""
    return prepare(mode, **{**inputs, "indexer_lens": torch.empty_like(inputs["indexer_lens"])})


@TARGET.variant(Verdict.DIVERGENCE, "values", "fault class F4: the capture's path fills what the replay's leaves")
@in_prepare
def replay_leaves_lengths(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Stages no lengths before a replay."""
    before = inputs["seq_lens"].clone()
    built = prepare(mode, **inputs)
    if mode is Mode.REPLAY:
        inputs["seq_lens"].copy_(before)
    return built


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F4: a stale tail; vLLM #47066, #37728, SGLang #22958")
@in_prepare
def leaves_padded_rows(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Stages the live rows' pages only; padded rows keep those of an earlier batch, which other requests own by now."""
    before, live = inputs["block_table"].clone(), int(inputs["live"])
    built = prepare(mode, **inputs)
    if inputs["path"] != "capture" and mode is not Mode.CAPTURE:
        inputs["block_table"][live:].copy_(before[live:])
    return built


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F6: slots are padded from the padded count; vLLM #53059")
@in_prepare
def slots_behind_the_tokens(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Takes every token of the bucket for real, so that padding writes to slots of other requests."""
    built = prepare(mode, **inputs)
    if inputs["path"] == "by_mode":
        inputs["slots"].copy_(inputs["new_slots"])
    return built


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F11: argmax of a mask with nothing in it; vLLM #34064")
@in_prepare
def loses_an_all_decode_batch(mode: Mode, **inputs: Any) -> dict[str, Built]:
    """Cuts a batch that has no prefill at the first one: in front of everything."""
    return replaced(mode, inputs, indexer=_cutting)


def _cutting(common: CommonMetadata, inputs: Mapping[str, Any], is_capture: bool) -> Built:
    built = indexer(common, inputs, is_capture)
    if common.query_len > inputs["threshold"] and built["split"][1:2].item() == 0 and not is_capture:
        built["split"].zero_()
    return built


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1: a scalar is copied to the device")
@in_body
def scalar_store(built: dict[str, Built], **inputs: Any) -> dict[str, Any]:
    """Makes sure of the first offset by a scalar store."""
    inputs["query_start_loc"][0] = 0
    return metadata_builders(built, **inputs)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: a count on the device is read by the host")
@in_body
def reads_the_split(built: dict[str, Built], **inputs: Any) -> dict[str, Any]:
    """Leaves the indexer out if there are no decodes, for which the host reads the split."""
    out = metadata_builders(built, **inputs)
    if "indexer" in built and built["indexer"]["split"][:1].item() == 0:
        out["indexer"]["decode_lens"].zero_()
    return out
