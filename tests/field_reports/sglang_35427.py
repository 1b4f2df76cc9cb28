"""A compiled kernel loses its last reference during capture, and unloads its module: https://github.com/sgl-project/sglang/pull/35427"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in


class Kernel:
    """A loaded module. The runtime unloads it with a call that capture forbids; a wait stands for that call."""

    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.run = run

    def __del__(self) -> None:
        if torch.cuda.is_available():  # the last one dies with the process
            torch.cuda.synchronize()


SOURCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"scale": lambda x: x * 3, "shift": lambda x: x + 1}
LOADED: dict[str, Kernel] = {}


def loaded(name: str) -> Kernel:
    if name not in LOADED:
        LOADED[name] = Kernel(SOURCES[name])
    return LOADED[name]


def mended(x: torch.Tensor) -> torch.Tensor:
    """Every kernel that was loaded stays so."""
    return loaded("shift").run(loaded("scale").run(x))


def reference(x: np.ndarray) -> np.ndarray:
    return x * 3 + 1


def build(case: Case) -> Sequence[Feed]:
    return [{"x": Argument(rows_in(step, "x"))} for step in case.steps]


CLASS = "H3"
TARGET = Target(
    name=__name__,
    summary="two compiled kernels, loaded at first use",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("x", most=4096),),
    build=build,
)
LAST: dict[str, Kernel] = {}


def last_loaded(name: str) -> Kernel:
    LAST["kernel"] = Kernel(SOURCES[name])
    return LAST["kernel"]


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "https://github.com/sgl-project/sglang/pull/35427")
def faulty(x: torch.Tensor) -> torch.Tensor:
    """Keeps the last kernel only: loading the next one destroys it, and its destructor waits."""
    return last_loaded("shift").run(last_loaded("scale").run(x))
