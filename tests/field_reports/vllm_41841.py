"""The host's state of padded requests is left over, and makes a decode look mixed: https://github.com/vllm-project/vllm/issues/41841"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, draining, rows_in

MOST_ROWS = 8192
PROMPT = 4


def scan(states: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One Mamba step of each row: its state, found by its slot, and what is new."""
    return states[slots] + x


def eager(
    states: torch.Tensor, slots: torch.Tensor, x: torch.Tensor, computed_cpu: torch.Tensor, prompt_cpu: torch.Tensor
) -> torch.Tensor:
    return scan(states, slots, x)


class ModelRunner:
    """Decode batches run the graph of their bucket. The builder refreshes its slots if it counts no prefills among its rows."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._computed = torch.zeros(MOST_ROWS, dtype=torch.int64)
        self._prompt = torch.zeros(MOST_ROWS, dtype=torch.int64)

    def __call__(
        self, states: torch.Tensor, slots: torch.Tensor, x: torch.Tensor, computed_cpu: torch.Tensor, prompt_cpu: torch.Tensor
    ) -> torch.Tensor:
        rows = x.numel()
        self._computed[:rows] = computed_cpu
        self._prompt[:rows] = prompt_cpu
        if bool((computed_cpu < prompt_cpu).any()):
            return scan(states, slots, x)
        bucket = bucket_of(rows)
        key = bucket, states.numel()
        if key not in self._static:
            self._static[key] = torch.zeros_like(states), slots.new_zeros(bucket), x.new_zeros(bucket)
        static_states, static_slots, static_x = self._static[key]
        self._graphs.capture(key, lambda: scan(static_states, static_slots, static_x))
        static_states.copy_(states)
        static_x[:rows].copy_(x)
        if self.prefills(rows, bucket) == 0:
            static_slots[:rows].copy_(slots)
        out: torch.Tensor = self._graphs.replay(key)
        return out[:rows].clone()

    def prefills(self, rows: int, bucket: int) -> int:
        is_prefill = self._computed[:bucket] < self._prompt[:bucket]
        return int(is_prefill[:rows].sum())


def reference(
    states: np.ndarray, slots: np.ndarray, x: np.ndarray, computed_cpu: np.ndarray, prompt_cpu: np.ndarray
) -> np.ndarray:
    return np.array([states[slot] + new for slot, new in zip(slots, x, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, (step, live) in enumerate(zip(case.steps, draining(case, "live"), strict=True)):
        computed = rows_in(step, "computed")
        feeds.append(
            {
                "states": Argument(1000 * (np.arange(computed.size + 1) + 1)),
                "slots": Argument(np.roll(np.arange(computed.size), number + 1)[:live].copy()),
                "x": Argument(np.arange(live) + 7 * number),
                "computed_cpu": Argument(computed[:live], space=Space.HOST),
                "prompt_cpu": Argument(np.full(live, PROMPT), space=Space.HOST),
            }
        )
    return feeds


CLASS = "S"
TARGET = Target(
    name=__name__,
    summary="a Mamba builder that asks the host's request state whether a batch is decode only",
    implementation=Runner(eager, ModelRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("computed", most=4096), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class CountsAll(ModelRunner):
    """Counts prefills among the padded rows too, whose host state is that of earlier requests."""

    def prefills(self, rows: int, bucket: int) -> int:
        return int((self._computed[:bucket] < self._prompt[:bucket]).sum())


faulty = Runner(eager, CountsAll)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/vllm-project/vllm/issues/41841", name="faulty")(faulty)
