"""Rows of the output are counted in requests, and there are several for each: https://github.com/sgl-project/sglang/pull/36749"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, integer_in, integer_of, rows_in


def logits_of(hidden: torch.Tensor) -> torch.Tensor:
    return hidden * 3 + 1


def eager(hidden: torch.Tensor, per_request: int) -> torch.Tensor:
    return logits_of(hidden)


class VerifyRunner:
    """Runs the graph of a bucket of requests; its buffers have `per_request` rows for each."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, int], torch.Tensor] = {}

    def __call__(self, hidden: torch.Tensor, per_request: int) -> torch.Tensor:
        tokens = hidden.numel()
        key = bucket, _ = bucket_of(tokens // per_request), per_request
        if key not in self._static:
            self._static[key] = hidden.new_zeros(bucket * per_request)
        static_hidden = self._static[key]
        self._graphs.capture(key, lambda: logits_of(static_hidden))
        static_hidden[:tokens].copy_(hidden)
        out: torch.Tensor = self._graphs.replay(key)
        return out[: self.rows(tokens, per_request)].clone()

    def rows(self, tokens: int, per_request: int) -> int:
        return tokens


def reference(hidden: np.ndarray, per_request: int) -> np.ndarray:
    return np.array([3 * int(value) + 1 for value in hidden], np.int64)


def build(case: Case) -> Sequence[Feed]:
    per_request = integer_of(case, "per_request")
    return [
        {
            "hidden": Argument(np.repeat(rows_in(step, "x")[: integer_in(step, "live")], per_request)),
            "per_request": per_request,
        }
        for step in case.steps
    ]


CLASS = "E"
TARGET = Target(
    name=__name__,
    summary="the logits of a verification, some rows a request",
    implementation=Runner(eager, VerifyRunner),
    reference=reference,
    fixed=(IntAxis("per_request", simplest=1, most=16, common=(1, 2, 4)),),
    stepped=(RowsAxis("x", most=512), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class CountsRequests(VerifyRunner):
    """Gives as many rows as there are requests."""

    def rows(self, tokens: int, per_request: int) -> int:
        return tokens // per_request


faulty = Runner(eager, CountsRequests)
TARGET.variant(Verdict.DIVERGENCE, "shape", "https://github.com/sgl-project/sglang/pull/36749", name="faulty")(faulty)
