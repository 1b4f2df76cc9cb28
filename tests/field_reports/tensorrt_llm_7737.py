"""Lengths that the graph advances are put back after the capture, and not after a replay: https://github.com/NVIDIA/TensorRT-LLM/pull/7737"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, rows_in


def eager(kv_lens: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
    return kv_lens + accepted


class DraftRunner:
    """One graph for each batch size. Lengths are copied to the device only if the host has changed them."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._last: dict[int, torch.Tensor] = {}

    def __call__(self, kv_lens: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        rows = kv_lens.numel()
        if rows not in self._static:
            self._static[rows] = kv_lens.clone(), torch.zeros_like(accepted)
            self._last[rows] = kv_lens.clone()
        static_lens, static_accepted = self._static[rows]
        self._graphs.capture(rows, lambda: self.forward(static_lens, static_accepted))
        if not torch.equal(self._last[rows], kv_lens):
            static_lens.copy_(kv_lens)
            self._last[rows] = kv_lens.clone()
        static_accepted.copy_(accepted)
        out: torch.Tensor = self._graphs.replay(rows)
        return out.clone()

    def forward(self, kv_lens: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        """The lengths with the accepted tokens; the prepared ones stay as they are."""
        return kv_lens + accepted


def reference(kv_lens: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    return np.array([length + more for length, more in zip(kv_lens, accepted, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [
        {"kv_lens": Argument(rows_in(step, "kv_lens")), "accepted": Argument(rows_in(step, "accepted"))} for step in case.steps
    ]


CLASS = "M"
TARGET = Target(
    name=__name__,
    summary="lengths of requests under speculative decoding",
    implementation=Runner(eager, DraftRunner),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("kv_lens", most=512), RowsAxis("accepted", most=4)),
    build=build,
)


class Drifting(DraftRunner):
    """Advances the lengths in place: when the host has nothing new, the next replay starts from where the last one ended."""

    def forward(self, kv_lens: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        kv_lens += accepted
        return kv_lens * 1


faulty = Runner(eager, Drifting)
TARGET.variant(Verdict.DIVERGENCE, "not_idempotent", "https://github.com/NVIDIA/TensorRT-LLM/pull/7737", name="faulty")(faulty)
