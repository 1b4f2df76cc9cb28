"""Wrappers share metadata, and each skips preparing when its own lengths are as before: https://github.com/NVIDIA/TensorRT-LLM/pull/13696"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import ChoiceAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, rows_in

LONGEST = 4096
TOKENS_A_FRAME = {"480p": 3, "720p": 7}


def attend(lens: torch.Tensor) -> torch.Tensor:
    return lens * lens + 1


def eager(frames: torch.Tensor, resolution: str) -> torch.Tensor:
    """What attention gives for videos of so many frames."""
    return attend((frames * TOKENS_A_FRAME[resolution]).to("cuda"))


class Metadata:
    """What all wrappers share: the lengths as the host knows them, and one device buffer for each batch size."""

    def __init__(self) -> None:
        self.lens: torch.Tensor | None = None
        self.buffers: dict[int, torch.Tensor] = {}

    def buffer_of(self, lens: torch.Tensor) -> torch.Tensor:
        return self.buffers.setdefault(lens.numel(), torch.zeros_like(lens, device="cuda"))

    def prepare(self, lens: torch.Tensor) -> None:
        self.lens = lens.clone()
        self.buffer_of(lens).copy_(lens)


class Wrapper:
    """The attention of one resolution."""

    def __init__(self, shared: Metadata) -> None:
        self._shared = shared
        self._graphs = GraphCache()
        self._seen: torch.Tensor | None = None

    def __call__(self, lens: torch.Tensor) -> torch.Tensor:
        buffer = self._shared.buffer_of(lens)
        self._graphs.capture(lens.numel(), lambda: attend(buffer))
        if not self.is_prepared(lens):
            self._shared.prepare(lens)
            self._seen = lens.clone()
        return self._graphs.replay(lens.numel()).clone()  # type: ignore[no-any-return]

    def is_prepared(self, lens: torch.Tensor) -> bool:
        return self.was_seen(lens) and self._shared.lens is not None and torch.equal(self._shared.lens, lens)

    def was_seen(self, lens: torch.Tensor) -> bool:
        return self._seen is not None and torch.equal(self._seen, lens)


class Model:
    """A wrapper for each resolution."""

    def __init__(self, wrapper: type[Wrapper] = Wrapper) -> None:
        shared = Metadata()
        self._wrappers = {resolution: wrapper(shared) for resolution in TOKENS_A_FRAME}

    def __call__(self, frames: torch.Tensor, resolution: str) -> torch.Tensor:
        return self._wrappers[resolution](frames * TOKENS_A_FRAME[resolution])


def reference(frames: np.ndarray, resolution: str) -> np.ndarray:
    return np.array([(count * TOKENS_A_FRAME[resolution]) ** 2 + 1 for count in frames], np.int64)


def build(case: Case) -> Sequence[Feed]:
    """No step has the frames of the one before: what a step was prepared for is then what the other resolution has left."""
    frames = [
        Argument(rows_in(step, "frames") + 2 * LONGEST * number, space=Space.HOST) for number, step in enumerate(case.steps)
    ]
    return [{"frames": argument, "resolution": case.values["resolution"]} for argument in frames]


REPORT = "https://github.com/NVIDIA/TensorRT-LLM/pull/13696"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="attention for requests of several resolutions",
    implementation=Runner(eager, Model),
    reference=reference,
    fixed=(ChoiceAxis("resolution", tuple(TOKENS_A_FRAME)),),
    stepped=(RowsAxis("frames", most=LONGEST),),
    build=build,
)


class Trusting(Wrapper):
    def is_prepared(self, lens: torch.Tensor) -> bool:
        return self.was_seen(lens)


def trusting() -> Model:
    """Does not ask whether another wrapper has prepared since: A, B, A replays A with what B left."""
    return Model(Trusting)


faulty = Runner(eager, trusting)
TARGET.variant(Verdict.DIVERGENCE, "not_idempotent", REPORT, name="faulty")(faulty)
