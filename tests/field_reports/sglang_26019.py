"""A merged builder binds new metadata at replay, and the recorded one is never filled again: https://github.com/sgl-project/sglang/pull/26019"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Runner, Verdict
from capfuzz.targets.axes import IntAxis, RowsAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target
from tests.field_reports._common import GraphCache, integer_of, rows_in

Key = tuple[int, int]


def page_table(req_to_page: torch.Tensor, requests: torch.Tensor) -> torch.Tensor:
    return req_to_page[requests]


def attend(kv: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return kv[table].sum(1)


def eager(kv: torch.Tensor, req_to_page: torch.Tensor, requests: torch.Tensor) -> torch.Tensor:
    return attend(kv, page_table(req_to_page, requests))


class Backend:
    """One graph a shape of the page table. What a graph was captured with is kept, and must be what replay fills."""

    def __init__(self) -> None:
        self._graphs = GraphCache()
        self._captured: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {}
        self.forward_metadata: torch.Tensor | None = None

    def __call__(self, kv: torch.Tensor, req_to_page: torch.Tensor, requests: torch.Tensor) -> torch.Tensor:
        key = requests.numel(), req_to_page.shape[1]
        if key not in self._captured:
            static_kv, table = torch.empty_like(kv), page_table(req_to_page, requests)
            self._captured[key] = static_kv, table
            self._graphs.capture(key, lambda: attend(static_kv, table))
        static_kv, table = self._captured[key]
        static_kv.copy_(kv)
        self.init_forward_data(table, page_table(req_to_page, requests))
        return self._graphs.replay(key).clone()  # type: ignore[no-any-return]

    def init_forward_data(self, captured: torch.Tensor, table: torch.Tensor) -> None:
        self.forward_metadata = captured.copy_(table)


def reference(kv: np.ndarray, req_to_page: np.ndarray, requests: np.ndarray) -> np.ndarray:
    return np.array([sum(int(kv[page]) for page in req_to_page[request]) for request in requests], np.int64)


def build(case: Case) -> Sequence[Feed]:
    """The cache stays the same, so that the pages of the requests are all that changes."""
    kv = np.arange(1, 65) ** 2
    req_to_page = (np.arange(16)[:, None] * 4 + np.arange(integer_of(case, "pages"))) % len(kv)
    return [
        {"kv": Argument(kv), "req_to_page": Argument(req_to_page), "requests": Argument(rows_in(step, "requests") % 16)}
        for step in case.steps
    ]


REPORT = "https://github.com/sgl-project/sglang/pull/26019"
CLASS = "B"
TARGET = Target(
    name=__name__,
    summary="page tables of a batch: one builder for capture and replay",
    implementation=Runner(eager, Backend),
    reference=reference,
    fixed=(IntAxis("pages", simplest=1, most=16, common=(1, 2, 8)),),
    stepped=(RowsAxis("requests", most=4096),),
    build=build,
)


class Unified(Backend):
    """Allocates the metadata anew at replay, where the graph reads what was bound at capture."""

    def init_forward_data(self, captured: torch.Tensor, table: torch.Tensor) -> None:
        self.forward_metadata = table


faulty = Runner(eager, Unified)
TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", REPORT, name="faulty")(faulty)
