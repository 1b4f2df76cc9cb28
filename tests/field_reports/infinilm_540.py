"""The offset into the cache is parsed on the host when the graph is captured: https://github.com/InfiniTensor/InfiniLM/pull/540"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import IntAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_in, integer_of

Answer = tuple[torch.Tensor, torch.Tensor]


def mended(cache: torch.Tensor, new: torch.Tensor, past: torch.Tensor, past_cpu: torch.Tensor) -> Answer:
    """Writes one token behind the past ones and attends to all of them; the position stays on the device."""
    cache.index_copy_(0, past, new)
    seen = torch.arange(cache.shape[0], device=cache.device) <= past
    return cache.clone(), (cache * seen.unsqueeze(1)).sum(0)


def reference(cache: np.ndarray, new: np.ndarray, past: np.ndarray, past_cpu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cache[past[0]] = new[0]
    return cache, cache[: past[0] + 1].sum(0)


def build(case: Case) -> Sequence[Feed]:
    """The cache and the new token stay the same, so that the position is all that changes."""
    heads, capacity = integer_of(case, "heads"), 16
    cache = np.arange(1, capacity * heads + 1).reshape(capacity, heads)
    new = -cache[:1]
    feeds: list[Feed] = []
    for step in case.steps:
        past = np.array([integer_in(step, "past") % capacity])
        arrays = {"cache": Argument(cache), "new": Argument(new), "past": Argument(past)}
        feeds.append({**arrays, "past_cpu": Argument(past, space=Space.HOST)})
    return feeds


CLASS = "F"
TARGET = Target(
    name=__name__,
    summary="decode with a cache that grows by one token",
    implementation=mended,
    reference=reference,
    fixed=(IntAxis("heads", simplest=1, most=16, common=(1, 2, 8)),),
    stepped=(StepIntAxis("past", common=(1, 2, 7, 15)),),
    build=build,
)


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "https://github.com/InfiniTensor/InfiniLM/pull/540")
def faulty(cache: torch.Tensor, new: torch.Tensor, past: torch.Tensor, past_cpu: torch.Tensor) -> Answer:
    """Slices by the host's position, so that write and attention stay where they were captured."""
    position = int(past_cpu[0])
    cache[position : position + 1] = new
    return cache.clone(), cache[: position + 1].sum(0)
