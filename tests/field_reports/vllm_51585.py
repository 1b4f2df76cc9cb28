"""Preparing a capture zeroes the host's query offsets, which the other builders read: https://github.com/vllm-project/vllm/pull/51585"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import Feed, Mode, TwoPart, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in

Builder = Callable[[torch.Tensor, torch.Tensor], None]


def zero_device_offsets(query_start_loc: torch.Tensor, query_start_loc_cpu: torch.Tensor) -> None:
    """The prefill kernel must do nothing during the capture."""
    query_start_loc.zero_()


def decode_query_len(query_start_loc_cpu: torch.Tensor) -> int:
    """The next builder of the chain: the longest query, of a batch that has any."""
    if query_start_loc_cpu.numel() == 1:
        return 0
    longest = int(query_start_loc_cpu.diff().max())
    assert longest > 0, "a batch of requests without queries"
    return longest


def chain(first: Builder) -> Callable[..., int]:
    def prepare(mode: Mode, **inputs: Any) -> int:
        """Both builders, of which the first has a path of its own for captures."""
        if mode is Mode.CAPTURE:
            first(inputs["query_start_loc"], inputs["query_start_loc_cpu"])
        return decode_query_len(inputs["query_start_loc_cpu"])

    return prepare


def query_lens(longest: int, /, **inputs: Any) -> torch.Tensor:
    lens: torch.Tensor = inputs["query_start_loc"].diff()
    return lens


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for step in case.steps:
        offsets = np.concatenate([[0], np.cumsum(rows_in(step, "lens"))])
        feeds.append({"query_start_loc": Argument(offsets), "query_start_loc_cpu": Argument(offsets.copy(), space=Space.HOST)})
    return feeds


CLASS = "M"
TARGET = Target(
    name=__name__,
    summary="query offsets on the device and on the host, read by a chain of builders",
    implementation=TwoPart(chain(zero_device_offsets), query_lens),
    reference=None,
    fixed=(),
    stepped=(RowsAxis("lens", least=1, most=512),),
    build=build,
)


def zero_both(query_start_loc: torch.Tensor, query_start_loc_cpu: torch.Tensor) -> None:
    """Zeroes the host's copy as well."""
    query_start_loc.zero_()
    query_start_loc_cpu.zero_()


faulty = TwoPart(chain(zero_both), query_lens)
TARGET.variant(Verdict.CAPTURE_ERROR, "host_exception", "https://github.com/vllm-project/vllm/pull/51585", name="faulty")(
    faulty
)
