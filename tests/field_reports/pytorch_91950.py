"""A module with a private generator cannot be captured: https://github.com/pytorch/pytorch/issues/91950"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in

SEED = 7


def private_generator(mode: Mode, **inputs: Any) -> torch.Generator:
    """What the module makes for itself, outside the capture."""
    return torch.Generator(inputs["x"].device).manual_seed(SEED)


def drawn_outside(mode: Mode, **inputs: Any) -> None:
    """Draws before the graph, and copies in."""
    x: torch.Tensor = inputs["x"]
    generator = private_generator(mode, **inputs)
    inputs["noise"].copy_(torch.rand(x.shape, generator=generator, device=x.device))


def add_noise(nothing: None, /, **inputs: Any) -> torch.Tensor:
    noisy: torch.Tensor = inputs["x"] + inputs["noise"]
    return noisy


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for step in case.steps:
        x = rows_in(step, "x").astype(np.float32)
        feeds.append({"x": Argument(x), "noise": Argument(np.zeros_like(x))})
    return feeds


CLASS = "R"
TARGET = Target(
    name=__name__,
    summary="noise from a generator of a module's own",
    implementation=TwoPart(drawn_outside, add_noise),
    reference=None,
    fixed=(),
    stepped=(RowsAxis("x", most=512),),
    build=build,
)


def draw_inside(generator: torch.Generator, /, **inputs: Any) -> torch.Tensor:
    """Draws in the capture, which has been told of no such generator."""
    x: torch.Tensor = inputs["x"]
    generator.manual_seed(SEED)
    return x + torch.rand(x.shape, generator=generator, device=x.device)


faulty = TwoPart(private_generator, draw_inside)
TARGET.variant(Verdict.CAPTURE_ERROR, "host_exception", "https://github.com/pytorch/pytorch/issues/91950", name="faulty")(
    faulty
)
