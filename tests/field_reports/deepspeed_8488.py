"""The replay wrapper refreshes top-level tensors, and none inside a container: https://github.com/deepspeedai/DeepSpeed/pull/8488"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, rows_in

Inputs = Mapping[str, Any]


def denoise(sample: torch.Tensor, added_cond: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return sample + 2 * added_cond["text_embeds"]


def cloned(inputs: Inputs) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else cloned(value) for name, value in inputs.items()}


def refresh(static: Inputs, inputs: Inputs) -> None:
    """Copies every tensor into its static one; raises `KeyError` for one that has none."""
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            static[name].copy_(value)
        else:
            refresh(static[name], value)


class GraphWrapper:
    """Captures a model at its first call with each shape, on copies of the inputs."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._static: dict[torch.Size, dict[str, Any]] = {}

    def __call__(self, sample: torch.Tensor, text_embeds: torch.Tensor) -> torch.Tensor:
        inputs = {"sample": sample, "added_cond": {"text_embeds": text_embeds}}
        if sample.shape not in self._static:
            self._static[sample.shape] = cloned(inputs)
        static = self._static[sample.shape]
        self._graphs.capture(sample.shape, lambda: denoise(**static))
        self.refresh(static, inputs)
        return self._graphs.replay(sample.shape).clone()  # type: ignore[no-any-return]

    def refresh(self, static: Inputs, inputs: Inputs) -> None:
        refresh(static, inputs)


def eager(sample: torch.Tensor, text_embeds: torch.Tensor) -> torch.Tensor:
    return denoise(sample, {"text_embeds": text_embeds})


def reference(sample: np.ndarray, text_embeds: np.ndarray) -> np.ndarray:
    return np.array([x + t + t for x, t in zip(sample, text_embeds, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    """The sample is the same noise for every prompt."""
    prompts = [rows_in(step, "prompt") for step in case.steps]
    return [{"sample": Argument(np.arange(len(rows))), "text_embeds": Argument(rows)} for rows in prompts]


REPORT = "https://github.com/deepspeedai/DeepSpeed/pull/8488"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="a diffusion model whose conditions lie in a nested container",
    implementation=Runner(eager, GraphWrapper),
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("prompt", most=4096),),
    build=build,
)


class TopLevelOnly(GraphWrapper):
    """Copies the arguments that are tensors, and skips those that hold some."""

    def refresh(self, static: Inputs, inputs: Inputs) -> None:
        refresh(static, {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)})


faulty = Runner(eager, TopLevelOnly)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", REPORT, name="faulty")(faulty)
