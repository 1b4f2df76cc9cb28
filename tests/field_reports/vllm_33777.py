"""Padded requests of no tokens count as prefills, and the graph's buffers are not prepared: https://github.com/vllm-project/vllm/pull/33777"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import integer_in, rows_in

Prefills = Callable[[torch.Tensor, torch.Tensor], int]


def live_prefills(query_lens: torch.Tensor, is_speculative: torch.Tensor) -> int:
    """Requests with tokens that neither decode nor verify drafts."""
    return int(((query_lens > 1) & ~is_speculative).sum())


def builder(prefills: Prefills) -> Callable[..., torch.Tensor]:
    def prepare(mode: Mode, **inputs: Any) -> torch.Tensor:
        """Fills in the states of speculative requests, -1 behind the last."""
        query_lens, is_speculative = inputs["query_lens_cpu"], inputs["is_speculative_cpu"]
        live = int(inputs["live_cpu"])
        if mode is Mode.EAGER:  # not padded
            query_lens, is_speculative = query_lens[:live], is_speculative[:live]
        elif mode is Mode.CAPTURE:  # a batch of full requests
            query_lens, is_speculative = torch.full_like(query_lens, 2), torch.ones_like(is_speculative)
        buffer: torch.Tensor | None = None
        if prefills(query_lens, is_speculative) == 0:
            buffer = inputs["buffer"]
            buffer.fill_(-1)
            buffer[:live].copy_(inputs["slots"][:live])
        assert buffer is not None, "no states for the speculative requests"
        return buffer

    return prepare


def scan(slots: torch.Tensor, /, **inputs: Any) -> torch.Tensor:
    """The state of each request, 0 for padded ones."""
    states: torch.Tensor = inputs["states"]
    return torch.where(slots >= 0, states[slots.clamp(min=0)], 0)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        drafts = rows_in(step, "drafts")
        is_live = np.arange(drafts.size) < integer_in(step, "live")
        feeds.append(
            {
                "states": Argument(np.arange(drafts.size + 1) + 1000 * (number + 1)),
                "slots": Argument(np.roll(np.arange(drafts.size), number)),
                "buffer": Argument(np.zeros(drafts.size, np.int64)),
                "query_lens_cpu": Argument((1 + drafts) * is_live, space=Space.HOST),
                "is_speculative_cpu": Argument(is_live, space=Space.HOST),
                "live_cpu": Argument(np.array(integer_in(step, "live")), space=Space.HOST),
            }
        )
    return feeds


CLASS = "P"
TARGET = Target(
    name=__name__,
    summary="the builder of gated delta attention, for speculative requests in a padded graph",
    implementation=TwoPart(builder(live_prefills), scan),
    reference=None,
    fixed=(),
    stepped=(RowsAxis("drafts", most=7), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


def all_but_decodes(query_lens: torch.Tensor, is_speculative: torch.Tensor) -> int:
    """Requests that do not verify drafts, but for those of one token: padded ones of none are among them."""
    others = query_lens[~is_speculative]
    return int(others.numel() - (others == 1).sum())


faulty = TwoPart(builder(all_but_decodes), scan)
TARGET.variant(Verdict.REPLAY_ERROR, "AssertionError", "https://github.com/vllm-project/vllm/pull/33777", name="faulty")(faulty)
