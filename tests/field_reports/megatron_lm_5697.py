"""The sampler draws from a generator that the graph does not know: https://github.com/NVIDIA/Megatron-LM/pull/5697"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_in, integer_of, rows_in

Draw = tuple[int, int]


def draw(mode: Mode, **inputs: Any) -> Draw:
    """The sampler's own generator gives the seed and the offset of a step's random numbers."""
    generator = torch.Generator().manual_seed(int(inputs["seed_cpu"]))
    seed, offset = torch.randint(0, 2**31, (2,), generator=generator).tolist()
    inputs["philox"].copy_(torch.tensor([seed, offset], device=inputs["philox"].device))
    return seed, offset


def sample(seed: torch.Tensor | int, offset: torch.Tensor | int, inputs: dict[str, Any]) -> torch.Tensor:
    """A counter-based generator, as kernels have them: one token below `vocabulary` a row, from seed, offset and row alone."""
    rows: torch.Tensor = inputs["rows"]
    counter = torch.arange(rows.numel(), device=rows.device) + offset
    mixed = (counter * 2654435761 + seed) * 6364136223846793005 + 1442695040888963407
    return torch.remainder(torch.div(mixed, 2**32, rounding_mode="floor"), inputs["vocabulary"])


def mended(drawn: Draw, /, **inputs: Any) -> torch.Tensor:
    """Reads seed and offset from device memory, which is set before every replay."""
    seed, offset = inputs["philox"]
    return sample(seed, offset, inputs)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for step in case.steps:
        feeds.append(
            {
                "rows": Argument(rows_in(case.steps[0], "rows")),
                "philox": Argument(np.zeros(2, np.int64)),
                "seed_cpu": Argument(np.array(integer_in(step, "seed")), space=Space.HOST),
                "vocabulary": integer_of(case, "vocabulary"),
            }
        )
    return feeds


CLASS = "R"
TARGET = Target(
    name=__name__,
    summary="a sampler with a random generator of its own",
    implementation=TwoPart(draw, mended),
    reference=None,
    fixed=(IntAxis("vocabulary", simplest=1, most=2**17, common=(2, 128, 32000)),),
    stepped=(RowsAxis("rows", most=1), StepIntAxis("seed", common=(1, 2, 3, 1234))),
    build=build,
)


def baked(drawn: Draw, /, **inputs: Any) -> torch.Tensor:
    """Hands seed and offset to the kernel as numbers: every replay draws what the capture drew."""
    seed, offset = drawn
    return sample(seed, offset, inputs)


faulty = TwoPart(draw, baked)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "https://github.com/NVIDIA/Megatron-LM/pull/5697", name="faulty")(faulty)
