"""An operator between two graph pieces gives a new tensor at each step: https://github.com/vllm-project/vllm/pull/37395"""

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


def before(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def split_op(x: torch.Tensor) -> torch.Tensor:
    """The operator that is not captured. Like attention, it allocates its result."""
    return x.cumsum(0)


def after(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def eager(x: torch.Tensor) -> torch.Tensor:
    return after(split_op(before(x)))


class Piecewise:
    """Graph, eager operator, graph, for each size. What is handed over to the second graph lies in a buffer of its own."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._inputs: dict[int, torch.Tensor] = {}
        self._handed: dict[int, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        size = x.numel()
        static = self._inputs.setdefault(size, torch.empty_like(x))
        self._graphs.capture((size, "before"), lambda: before(static))
        static.copy_(x)
        middle = self.hand_over(size, split_op(self._graphs.replay((size, "before"))))
        self._graphs.capture((size, "after"), lambda: after(middle))
        return self._graphs.replay((size, "after")).clone()  # type: ignore[no-any-return]

    def hand_over(self, size: int, result: torch.Tensor) -> torch.Tensor:
        return self._handed.setdefault(size, torch.empty_like(result)).copy_(result)


def reference(x: np.ndarray) -> np.ndarray:
    return np.array([3 * x[: end + 1].sum() + 1 for end in range(len(x))], np.int64)


def build(case: Case) -> Sequence[Feed]:
    return [{"x": Argument(rows_in(step, "x"))} for step in case.steps]


REPORT = "https://github.com/vllm-project/vllm/pull/37395"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="a model in pieces, with an eager operator between two graphs",
    implementation=Runner(eager, Piecewise),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=4096),),
    build=build,
)


class HandsOverAnything(Piecewise):
    """Captures the second piece on the first step's result, which is gone when the next step has another."""

    def hand_over(self, size: int, result: torch.Tensor) -> torch.Tensor:
        return result


faulty = Runner(eager, HandsOverAnything)
TARGET.variant(Verdict.DANGLING_BUFFER, None, REPORT, name="faulty")(faulty)
