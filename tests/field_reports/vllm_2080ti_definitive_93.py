"""The padding sentinel of state slots is 0, which a request may own: https://github.com/weicj/vLLM-2080Ti-Definitive/pull/93"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, integer_in, rows_in


def advance(state: torch.Tensor, slots: torch.Tensor, x: torch.Tensor, padding: int) -> torch.Tensor:
    """A gated delta step: each row advances the state in its slot, but for rows whose slot is `padding`. Gives all states."""
    return state.index_add(0, slots.clamp(min=0), torch.where(slots != padding, x, 0))


def eager(state: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return state.index_add(0, slots, x)


class DecodeRunner:
    """Decodes in the graph of a bucket; the slots behind the live ones hold the sentinel."""

    padding = -1

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, state: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = slots.numel()
        key = bucket, _ = bucket_of(rows), state.numel()
        if key not in self._static:
            self._static[key] = torch.zeros_like(state), slots.new_zeros(bucket), x.new_zeros(bucket)
        static_state, static_slots, static_x = self._static[key]
        self._graphs.capture(key, lambda: advance(static_state, static_slots, static_x, self.padding))
        static_state.copy_(state)
        static_slots[:rows].copy_(slots)
        static_slots[rows:].fill_(self.padding)
        static_x[:rows].copy_(x)
        out: torch.Tensor = self._graphs.replay(key)
        return out.clone()


def reference(state: np.ndarray, slots: np.ndarray, x: np.ndarray) -> np.ndarray:
    added = dict(zip(slots.tolist(), x.tolist(), strict=True))
    return np.array([old + added.get(slot, 0) for slot, old in enumerate(state.tolist())], np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens, live = rows_in(step, "lens"), integer_in(step, "live")
        feeds.append(
            {
                "state": Argument(1_000_000 * (number + 1) + np.arange(lens.size + 1)),
                "slots": Argument(np.roll(np.arange(lens.size), number)[:live].copy()),
                "x": Argument(lens[:live] + 1),
            }
        )
    return feeds


CLASS = "P"
TARGET = Target(
    name=__name__,
    summary="recurrent states of a decode batch, found by slot",
    implementation=Runner(eager, DecodeRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=512), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class ZeroIsPadding(DecodeRunner):
    """Pads with slot 0, so that the request that owns it is skipped as padding."""

    padding = 0


faulty = Runner(eager, ZeroIsPadding)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/weicj/vLLM-2080Ti-Definitive/pull/93", name="faulty")(faulty)
