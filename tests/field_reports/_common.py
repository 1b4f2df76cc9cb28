"""What several field reports need: values of cases, buckets, graphs found by a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from capfuzz.targets.case import Case, StepValue


def integer_of(case: Case, axis: str) -> int:
    """The value of an integer axis that is fixed."""
    value = case.values[axis]
    assert isinstance(value, int)
    return value


def integer_in(step: dict[str, StepValue], axis: str) -> int:
    """The value of an integer axis in one step."""
    value = step[axis]
    assert isinstance(value, int)
    return value


def rows_in(step: dict[str, StepValue], axis: str) -> np.ndarray:
    """The rows of an axis in one step, int64."""
    return np.array(step[axis], np.int64)


def bucket_of(rows: int, multiple: int = 8) -> int:
    """The size that a batch is padded to: the next multiple, at least one."""
    return max(1, -(-rows // multiple)) * multiple


def draining(case: Case, axis: str) -> list[int]:
    """How many rows are live in each step of a batch in which requests finish and none begin: all, then never more than before.

    What is stale is then stale in the first replay of each step, and in every other.
    """
    rows = max(len(value) for value in case.steps[0].values() if isinstance(value, list))
    live = [rows, *(integer_in(step, axis) for step in case.steps[1:])]
    return [min(live[: number + 1]) for number in range(len(live))]


class GraphCache:
    """Graphs found by a key, as an engine's runner keeps them. The static buffers are the caller's."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def capture(self, key: Hashable, body: Callable[[], Any]) -> None:
        """Warms up and captures `body` if there is no graph for `key` yet."""
        if key in self._graphs:
            return
        body()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = body()
        self._graphs[key] = graph, out

    def replay(self, key: Hashable) -> Any:
        """Replays the graph of `key`; returns its static output."""
        graph, out = self._graphs[key]
        graph.replay()
        return out
