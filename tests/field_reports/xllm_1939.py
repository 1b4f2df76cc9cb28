"""A graph of 112 rows has metadata for the 100 that are real: https://github.com/xLLM-AI/xllm/pull/1939"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import bucket_of, integer_of, rows_in

PAGE = 16
Answer = tuple[torch.Tensor, torch.Tensor]


def mended(lens: torch.Tensor, bucket: int) -> Answer:
    """Padded sequences are empty: the offset is repeated, and their last page holds one token.

    Gives what a graph of `bucket` rows reads: the page offsets (bucket + 1) and the lengths of the last pages (bucket).
    """
    pages = (lens + PAGE - 1) // PAGE
    padding = bucket - lens.numel()
    last_page_len = torch.where(lens > 0, (lens - 1) % PAGE + 1, 1)
    return F.pad(F.pad(pages, (0, padding)).cumsum(0), (1, 0)), F.pad(last_page_len, (0, padding), value=1)


def reference(lens: np.ndarray, bucket: int) -> tuple[np.ndarray, np.ndarray]:
    padded = [*lens.tolist(), *[0] * (bucket - lens.size)]
    indptr = np.cumsum([0, *(-(-length // PAGE) for length in padded)])
    return indptr, np.array([(length - 1) % PAGE + 1 if length else 1 for length in padded], np.int64)


def build(case: Case) -> Sequence[Feed]:
    multiple = integer_of(case, "multiple")
    feeds: list[Feed] = []
    for step in case.steps:
        lens = rows_in(step, "lens")
        feeds.append({"lens": Argument(lens), "bucket": bucket_of(lens.size, multiple)})
    return feeds


CLASS = "S"
TARGET = Target(
    name=__name__,
    summary="decode metadata of a padded graph",
    implementation=mended,
    reference=reference,
    fixed=(IntAxis("multiple", simplest=1, most=64, common=(1, 8, 16)),),
    stepped=(RowsAxis("lens", most=4096),),
    build=build,
)


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "https://github.com/xLLM-AI/xllm/pull/1939")
def faulty(lens: torch.Tensor, bucket: int) -> Answer:
    """Describes the sequences that there are. With padding turned off, those are all that the graph runs."""
    rows = lens.numel()
    indptr, last_page_len = lens.new_empty(bucket + 1), lens.new_empty(bucket)
    indptr[: rows + 1] = F.pad(((lens + PAGE - 1) // PAGE).cumsum(0), (1, 0))
    last_page_len[:rows] = torch.where(lens > 0, (lens - 1) % PAGE + 1, 1)
    return indptr, last_page_len
