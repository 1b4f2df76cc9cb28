"""A target that cannot fail is rejected: one whose graph need not read its inputs, and one that captures in every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from capfuzz.campaign.vacuous import captures_late, frozen_subject, without_inputs
from capfuzz.devices import Device
from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Implementation, Runner
from capfuzz.targets import Case, Target, targets
from capfuzz.targets.axes import RowsAxis
from capfuzz.workers import InProcess


def target_of(implementation: Implementation, build: Callable[[Case], Sequence[Feed]]) -> Target:
    return Target("planted", "a target to be audited", implementation, None, (), (RowsAxis("lens", most=64),), build)


def honest(case: Case) -> list[Feed]:
    return [{"lens": Argument(np.array(step["lens"], np.int64))} for step in case.steps]


def always_the_captured(case: Case) -> list[Feed]:
    """The steps' inputs are never changed."""
    return honest(case)[:1] * len(case.steps)


def cumulate(lens: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(lens, 0)


def of_shape_alone(lens: torch.Tensor) -> torch.Tensor:
    """Makes its inputs inside the graph."""
    made = torch.arange(lens.numel(), device=lens.device)
    return torch.cumsum(made, 0)


class Capturing:
    def __init__(self, every_time: bool) -> None:
        self.every_time = every_time
        self.graphs: dict[int, Any] = {}

    def __call__(self, lens: torch.Tensor) -> torch.Tensor:
        if self.every_time or lens.numel() not in self.graphs:
            static, graph = lens.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = torch.cumsum(static, 0)
            self.graphs[lens.numel()] = graph, static, out
        graph, static, out = self.graphs[lens.numel()]
        static.copy_(lens)
        graph.replay()
        answer: torch.Tensor = out.clone()
        return answer


@pytest.mark.parametrize(
    ("implementation", "build", "is_vacuous"),
    [
        (cumulate, honest, False),
        (of_shape_alone, honest, True),
        (cumulate, always_the_captured, True),
        (Runner(cumulate, lambda: Capturing(False)), honest, False),
        (Runner(cumulate, lambda: Capturing(False)), always_the_captured, True),
    ],
    ids=["honest", "inputs made inside", "steps that do not differ", "runner", "runner, steps that do not differ"],
)
def test_a_target_whose_graph_need_not_read_its_inputs(
    device: Device, implementation: Implementation, build: Callable[[Case], Sequence[Feed]], is_vacuous: bool
) -> None:
    target = target_of(implementation, build)
    reason = without_inputs(target, InProcess(device, frozen_subject(target)), 0, 200)
    assert (reason is not None) == is_vacuous


@pytest.mark.parametrize("every_time", [False, True])
def test_a_runner_that_captures_in_every_call(device: Device, every_time: bool) -> None:
    target = target_of(Runner(cumulate, lambda: Capturing(every_time)), honest)
    reason = captures_late(target, device, 0)
    assert (reason is not None) == every_time
    assert captures_late(target_of(cumulate, honest), device, 0) is None


@pytest.mark.parametrize("target", targets().values(), ids=targets())
def test_no_target_of_the_catalogue_is_vacuous(device: Device, target: Target) -> None:
    assert without_inputs(target, InProcess(device, frozen_subject(target)), 0, 200) is None
    assert captures_late(target, device, 0) is None
