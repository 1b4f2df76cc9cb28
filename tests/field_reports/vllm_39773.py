"""The tail of the last tokens' indices is not padded before a draft prefill: https://github.com/vllm-project/vllm/pull/39773"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, bucket_of, draining, rows_in

LONGEST = 8
Answer = tuple[torch.Tensor, torch.Tensor]


def gather(hidden: torch.Tensor, last_tokens: torch.Tensor) -> Answer:
    """The hidden states of the requests' last tokens, and their sum, of which a scale for the whole batch is made."""
    picked = hidden[last_tokens]
    return picked, picked.sum()


def eager(hidden: torch.Tensor, last_tokens: torch.Tensor) -> Answer:
    return gather(hidden, last_tokens)


class Speculator:
    """A graph for each number of tokens and padded number of requests. Behind the tokens lies a row of zeros."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, hidden: torch.Tensor, last_tokens: torch.Tensor) -> Answer:
        requests = last_tokens.numel()
        key = nothing, bucket = hidden.numel(), bucket_of(requests)
        if key not in self._static:
            self._static[key] = hidden.new_zeros(nothing + 1), last_tokens.new_full((bucket,), nothing)
        static_hidden, static_last = self._static[key]
        self._graphs.capture(key, lambda: gather(static_hidden, static_last))
        static_hidden[:nothing].copy_(hidden)
        static_last[:requests].copy_(last_tokens)
        self.pad(static_last, requests, nothing)
        picked, total = self._graphs.replay(key)
        return picked[:requests].clone(), total.clone()

    def pad(self, last_tokens: torch.Tensor, requests: int, nothing: int) -> None:
        last_tokens[requests:].fill_(nothing)


def reference(hidden: np.ndarray, last_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    picked = np.take(hidden, last_tokens)
    return picked, np.array(picked.sum(), np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, (step, live) in enumerate(zip(case.steps, draining(case, "live"), strict=True)):
        lens = rows_in(step, "lens")
        hidden = 1000 * (number + 1) + np.arange(LONGEST * (lens.size + 1))
        last_tokens = np.cumsum(lens[: max(1, live)]) - 1
        feeds.append({"hidden": Argument(hidden), "last_tokens": Argument(last_tokens)})
    return feeds


CLASS = "S"
TARGET = Target(
    name=__name__,
    summary="the hidden states that a draft model goes on from",
    implementation=Runner(eager, Speculator),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("lens", least=1, most=LONGEST), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


class Unpadded(Speculator):
    """Writes the indices of the requests that there are; behind them those of an earlier batch remain."""

    def pad(self, last_tokens: torch.Tensor, requests: int, nothing: int) -> None:
        return None


faulty = Runner(eager, Unpadded)
TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/vllm-project/vllm/pull/39773", name="faulty")(faulty)
