"""Targets that cannot fail: no replay of theirs can differ from what the capture saw.

Public tests of graphs were found unable to fail in two ways: the graph did not depend on its static inputs (they were built
inside the capture), and the capture came after the replay's inputs were written.
"""

from __future__ import annotations

from typing import Any

import torch

from capfuzz.campaign.audit import search
from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import Device
from capfuzz.differential import SIMPLEST, Runner
from capfuzz.targets import Subject, Target
from capfuzz.targets.mutants import FROZEN, frozen
from capfuzz.workers import InProcess, Judge

_CASES = 40


def without_inputs(target: Target, judge: Judge, seed: int, most: int) -> str | None:
    """Why no replay can fail: a graph that reads copies of its first inputs is not told from the shipped one. `judge` judges
    `frozen_subject`."""
    if search(target, None, judge, seed, most, lambda schedule: SIMPLEST).cases is not None:
        return None
    return f"a graph that reads none of its static inputs passes {most} cases: their steps do not differ where it matters"


def frozen_subject(target: Target) -> Subject:
    return Subject(target, f"mutant:{FROZEN}", frozen(target.implementation))


def captures_late(target: Target, device: Device, seed: int) -> str | None:
    """Why no replay can fail: a runner captures in every call, after that call's inputs were written."""
    if not isinstance(target.implementation, Runner):
        return None
    calls = captures = 0
    made = target.implementation.make

    def make() -> Any:
        runner = made()

        def call(**arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            graph_class: Any = type(torch.cuda.CUDAGraph())  # the device's own
            begin = graph_class.capture_begin

            def counting_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
                nonlocal captures
                captures += 1
                return begin(self, *args, **kwargs)

            graph_class.capture_begin = counting_begin
            try:
                return runner(**arguments)
            finally:
                graph_class.capture_begin = begin

        return call

    counted = Runner(target.implementation.eager, make, target.implementation.may_hold)
    judge = InProcess(device, Subject(target, "shipped", counted))
    for case in drawn(target.strategy(), _CASES, seed):
        judge.judge(case)
    if captures < calls:
        return None
    return (
        f"each of its {calls} calls captures anew, after the call's inputs were written: no graph is ever replayed with others"
    )
