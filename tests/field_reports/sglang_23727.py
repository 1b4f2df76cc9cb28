"""Two graphs of one batch size share an entry of metadata: https://github.com/sgl-project/sglang/pull/23727"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import ChoiceAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, rows_in


def decode(seq_lens: torch.Tensor, lora: bool) -> torch.Tensor:
    """The plain graph and the one with adapters run other kernels over the same metadata."""
    return seq_lens * 3 + 7 if lora else seq_lens + 1


class GraphRunner:
    """Captures a graph for each size, with adapters and without, and fills its metadata before each replay."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._metadata: dict[Hashable, torch.Tensor] = {}
        self._kept: dict[Hashable, torch.Tensor] = {}

    def __call__(self, seq_lens: torch.Tensor, lora: bool) -> torch.Tensor:
        key = seq_lens.numel(), lora
        entry = self.entry_of(*key)
        if key not in self._kept:
            static = seq_lens.clone()
            self._metadata[entry] = self._kept[key] = static
            self._graphs.capture(key, lambda: decode(static, lora))
        self._metadata[entry].copy_(seq_lens)
        return self._graphs.replay(key).clone()  # type: ignore[no-any-return]

    def entry_of(self, size: int, lora: bool) -> Hashable:
        return size, lora


def reference(seq_lens: np.ndarray, lora: bool) -> np.ndarray:
    return np.array([3 * length + 7 if lora else length + 1 for length in seq_lens], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [
        {"seq_lens": Argument(rows_in(step, "seq_lens")), "lora": case.values["adapters"] == "mixed"} for step in case.steps
    ]


REPORT = "https://github.com/sgl-project/sglang/pull/23727"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="decode graphs with and without adapters",
    implementation=Runner(decode, GraphRunner),
    reference=reference,
    fixed=(ChoiceAxis("adapters", ("none", "mixed")),),
    stepped=(RowsAxis("seq_lens", most=4096),),
    build=build,
)


class KeyedBySize(GraphRunner):
    """Finds metadata by the batch size alone, so that the second graph's takes the place of the first one's."""

    def entry_of(self, size: int, lora: bool) -> Hashable:
        return size


faulty = Runner(decode, KeyedBySize)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", REPORT, name="faulty")(faulty)
