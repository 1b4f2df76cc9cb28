"""The second warm-up runs on lengths that the first one has advanced: https://github.com/NVIDIA/TensorRT-LLM/pull/15913"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import rows_in

LONGEST = 16
HEADROOM = 4  # columns of the table that are not prepared: what an earlier batch left


def mended(table: torch.Tensor, kv_lens: torch.Tensor) -> torch.Tensor:
    """The slot of each request's next token; the lengths stay as they were prepared."""
    return table.gather(1, kv_lens.unsqueeze(1)).squeeze(1)


def reference(table: np.ndarray, kv_lens: np.ndarray) -> np.ndarray:
    return np.array([slots[length] for slots, length in zip(table, kv_lens, strict=True)], np.int64)


def build(case: Case) -> Sequence[Feed]:
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        lens = rows_in(step, "kv_lens")
        columns = np.arange(LONGEST + 1 + HEADROOM)
        prepared = 1000 * (number + 1) + columns + 100_000 * np.arange(lens.size)[:, None]
        table = np.where(columns <= lens[:, None], prepared, -777 - columns)
        feeds.append({"table": Argument(table), "kv_lens": Argument(lens)})
    return feeds


CLASS = "M"
TARGET = Target(
    name=__name__,
    summary="the cache slots of multi-token prediction, which lengthens the requests",
    implementation=mended,
    reference=reference,
    fixed=(),
    stepped=(RowsAxis("kv_lens", most=LONGEST),),
    build=build,
)


@TARGET.variant(Verdict.DIVERGENCE, "not_idempotent", "https://github.com/NVIDIA/TensorRT-LLM/pull/15913")
def faulty(table: torch.Tensor, kv_lens: torch.Tensor) -> torch.Tensor:
    """Lengthens the requests in the prepared buffer. Each run must be prepared for, and a second warm-up is not."""
    kv_lens += 1
    return table.gather(1, kv_lens.unsqueeze(1) - 1).squeeze(1)
