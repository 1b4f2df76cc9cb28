"""Finds the guilty op of a divergence: the first one, in trace order, at which eager and replay part.

Both traces are lists of the ops that were launched, each with its user line and the values that it wrote. They part where an
op wrote other values, or where one of them has an op that the other has not: a step that ran on the host at capture, or was
skipped there, is seen by the op that is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from capfuzz.devices.trace import OpRecord
from capfuzz.devices.tracer import Tracer
from capfuzz.differential.observe import same_values
from capfuzz.differential.verdict import Blame


def _storages(result: Any) -> tuple[int, ...]:
    if isinstance(result, torch.Tensor):
        return (result.untyped_storage()._cdata,)
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return tuple(key for item in result for key in _storages(item))
    return ()


class Traces:
    """The traces of one check: eager by step, and the first replay that disagrees."""

    def __init__(self) -> None:
        self.eager: dict[int, list[OpRecord]] = {}
        self.eager_outputs: dict[int, tuple[int, ...]] = {}
        self.replay: list[OpRecord] | None = None
        self.replay_outputs: tuple[int, ...] = ()
        self.step = 0

    def add_eager(self, step: int, tracer: Tracer, result: Any) -> None:
        self.eager[step] = tracer.records
        self.eager_outputs[step] = _storages(result)

    def add_replay(self, step: int, tracer: Tracer, result: Any, agrees: bool) -> None:
        if self.replay is None and not agrees:
            self.replay, self.step = tracer.records, step
            self.replay_outputs = _storages(result)


def guilty_op(traces: Traces, unwritten: bool) -> Blame:
    """Where eager and the first wrong replay part; for unwritten memory the allocation that was not filled."""
    eager, replay = traces.eager[traces.step], traces.replay or []
    if unwritten:
        found = _allocation_of(replay, traces.replay_outputs)
        if found is not None:
            return _blame(found)
    ours, theirs = _launched(eager), _launched(replay)
    for position, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if _key(left) != _key(right):
            missing = _key(left) not in {_key(r) for r in theirs[position:]}
            return _skipped(left) if missing else _blame(right)
        if not _same_record(left, right):
            return _blame(left)
    position = min(len(ours), len(theirs))
    if position < len(ours):
        return _skipped(ours[position])
    if position < len(theirs):
        return _blame(theirs[position])
    return _blame(_last_write(eager, traces.eager_outputs[traces.step]))


def last_writer(traces: Traces) -> Blame:
    """For a wrong eager answer: the implementation's line below which the output was written last. No op is to blame."""
    step = max(traces.eager, default=0)
    records = traces.eager.get(step, [])
    record = _last_write(records, traces.eager_outputs.get(step, ()))
    return Blame(None, None) if record is None else Blame(record.outer or record.location, None)


def _launched(records: list[OpRecord]) -> list[OpRecord]:
    return [record for record in records if record.kind not in ("alloc", "view")]


def _key(record: OpRecord) -> tuple[object, ...]:
    return (record.op, record.location)


def _same_record(left: OpRecord, right: OpRecord) -> bool:
    return len(left.values) == len(right.values) and all(map(_same_array, left.values, right.values))


def _same_array(left: np.ndarray, right: np.ndarray) -> bool:
    return same_values(left, right)


def _last_write(records: list[OpRecord], outputs: tuple[int, ...]) -> OpRecord | None:
    for record in reversed(records):
        if any(key in outputs for key in record.storages):
            return record
    return records[-1] if records else None


def _allocation_of(records: list[OpRecord], outputs: tuple[int, ...]) -> OpRecord | None:
    allocations = [record for record in records if record.kind == "alloc"]
    for record in allocations:
        if any(key in outputs for key in record.storages):
            return record
    return allocations[-1] if allocations else None


def _skipped(record: OpRecord) -> Blame:
    """An op that eager launches and the graph has not: the implementation's own line decided that it was not recorded."""
    return Blame(record.outer or record.location, record.op)


def _blame(record: OpRecord | None) -> Blame:
    return Blame(None, None) if record is None else Blame(record.location, record.op)
