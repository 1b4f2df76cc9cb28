"""Slot -1 of padded rows is the last slot of the cache: https://github.com/vllm-project/vllm/issues/43810"""

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

BLOCK = 4
PADDING_SLOT = -1


def store(kv: torch.Tensor, slots: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Each row stores its hidden state in its slot. Block 0 is the null block, which nobody reads."""
    kv[slots // BLOCK, slots % BLOCK] = hidden
    return kv[1:].clone()


def store_padded(kv: torch.Tensor, slots: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return store(kv, slots.clamp(min=0), hidden)


def eager(kv: torch.Tensor, slots: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return store(kv.clone(), slots, hidden)


class ModelRunner:
    """Slots behind the live ones are padded with -1, which to the cache kernels means: skip."""

    store = staticmethod(store_padded)

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, kv: torch.Tensor, slots: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        rows = slots.numel()
        bucket = bucket_of(rows)
        key = bucket, *kv.shape
        if key not in self._static:
            self._static[key] = torch.zeros_like(kv), slots.new_zeros(bucket), hidden.new_zeros(bucket)
        static_kv, static_slots, static_hidden = self._static[key]
        self._graphs.capture(key, lambda: self.store(static_kv, static_slots, static_hidden))
        static_kv.copy_(kv)
        static_slots[:rows].copy_(slots)
        static_slots[rows:].fill_(PADDING_SLOT)
        static_hidden[:rows].copy_(hidden)
        static_hidden[rows:].zero_()
        out: torch.Tensor = self._graphs.replay(key)
        return out.clone()


def reference(kv: np.ndarray, slots: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    flat = kv.reshape(-1)
    for slot, value in zip(slots, hidden, strict=True):
        flat[slot] = value
    return flat.reshape(kv.shape)[1:]


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = rows_in(step, "lens")
        live, blocks = integer_in(step, "live"), lens.size // BLOCK + 2  # the last slot is nobody's
        kv = 1_000_000 * (number + 1) + np.arange(blocks * BLOCK).reshape(blocks, BLOCK)
        slots = BLOCK + np.roll(np.arange(lens.size), number)[:live]
        feeds.append({"kv": Argument(kv), "slots": Argument(slots), "hidden": Argument(lens[:live] + 1000 * number)})
    return feeds


CLASS = "P"
TARGET = Target(
    name=__name__,
    summary="hidden states that are stored in a paged cache",
    implementation=Runner(eager, ModelRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", most=512), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class Indexes(ModelRunner):
    """Uses the slots as indices, which takes -1 for the last one."""

    store = staticmethod(store)


faulty = Runner(eager, Indexes)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/vllm-project/vllm/issues/43810", name="faulty")(faulty)
