"""A graph follows the generator's offset and not its seed: https://github.com/pytorch/pytorch/pull/84967"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_in, rows_in

CANNOT_SHOW = (
    "The fault was PyTorch's own, of 2022: graphs of every PyTorch that capfuzz supports read the seed at each replay, and so "
    "do those of the simulated device."
)


def mended(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The noise is drawn outside the graph and copied in."""
    return x + noise


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for step in case.steps:
        x = rows_in(step, "x").astype(np.float32)
        noise = np.random.default_rng(integer_in(step, "seed")).random(x.size, np.float32)
        feeds.append({"x": Argument(x), "noise": Argument(noise)})
    return feeds


CLASS = "R"
TARGET = Target(
    name=__name__,
    summary="noise after the generator was seeded anew",
    implementation=mended,
    reference=None,
    fixed=(),
    stepped=(RowsAxis("x", most=512), StepIntAxis("seed")),
    build=build,
)


@TARGET.variant(Verdict.DIVERGENCE, "values", "https://github.com/pytorch/pytorch/pull/84967")
def faulty(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Draws in the graph, from the default generator; a graph of that time went on with the seed of its capture."""
    return x + torch.rand(x.shape, device=x.device)
