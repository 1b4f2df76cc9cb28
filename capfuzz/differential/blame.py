"""Finds the guilty op of a divergence: the first one, in trace order, at which eager and replay part.

Both traces are lists of the ops that were launched, each with its user line and the values that it wrote. They part where an
op wrote other values, or where one of them has an op that the other has not: a step that ran on the host at capture, or was
skipped there, is seen by the op that is missing.

A wrong eager answer has nothing beside it but the right answer: it is blamed on the line that wrote it. Where the same inputs
in plain memory give another answer, it is the first op that sees the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
import torch

from capfuzz.devices.trace import Location, OpRecord, caller
from capfuzz.devices.tracer import Tracer, host_values
from capfuzz.differential.observe import flat, same_values
from capfuzz.differential.verdict import Blame


@dataclass(frozen=True)
class Output:
    """One tensor of a result: where it lies, and the last op that made or wrote the very tensor that was returned."""

    storage: int
    record: OpRecord | None


Outputs = dict[str, Output]


class ImplementationTracer(Tracer):
    """A tracer that knows the functions of the implementation, `codes`: `outer` is the line in any of them. With `values`, what
    views see is kept too."""

    def __init__(self, codes: tuple[CodeType, ...], values: bool = True, of_capture: bool = False) -> None:
        super().__init__(values=values, of_capture=of_capture)
        self._codes = codes
        self._last: dict[int, OpRecord] = {}  # by the tensor's identity

    def add(
        self,
        op: str,
        kind: str,
        written: Any,
        location: Location | None = None,
        read: Any = (),
        baked: tuple[Any, ...] = (),
    ) -> None:
        super().add(op, kind, written, location, read, baked)
        record = self.records[-1]
        record.outer = next(filter(None, map(caller, self._codes)), None)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
            tensors = tensors_of(written).values()
            self._last.update(dict.fromkeys(map(id, tensors), record))
            if self.values and kind == "view":
                record.values = list(map(host_values, tensors))

    def outputs(self, result: Any) -> Outputs:
        """The tensors of what a traced call has returned, by path."""
        return {path: Output(storage_of(tensor), self._last.get(id(tensor))) for path, tensor in tensors_of(result).items()}


def tensors_of(value: Any) -> dict[str, torch.Tensor]:
    """The tensors of a result, an argument list or the like that have memory of their own, by path."""
    leaves = flat(value).items()
    return {path: leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided}


def storage_of(tensor: torch.Tensor) -> int:
    """The id of the memory that a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


class Traces:
    """The traces of one check: eager by step, and the first replay that disagrees."""

    def __init__(self) -> None:
        self.eager: dict[int, list[OpRecord]] = {}
        self.eager_outputs: dict[int, Outputs] = {}
        self.replay: list[OpRecord] | None = None
        self.replay_outputs: set[int] = set()
        self.step = 0

    def add_eager(self, step: int, tracer: ImplementationTracer, result: Any) -> None:
        self.eager[step] = tracer.records
        self.eager_outputs[step] = tracer.outputs(result)

    def add_replay(self, step: int, tracer: ImplementationTracer, result: Any, agrees: bool) -> None:
        if self.replay is None and not agrees:
            self.replay, self.step = tracer.records, step
            self.replay_outputs = set(map(storage_of, tensors_of(result).values()))


def guilty_op(traces: Traces, unwritten: bool, path: str) -> Blame:
    """Where eager and the first wrong replay part; for unwritten memory the allocation that was not filled.

    `path` is the output that differs. Where no replay disagrees (another graph's did, or a warm-up) its last write is blamed.
    """
    eager, outputs = traces.eager[traces.step], traces.eager_outputs[traces.step]
    if traces.replay is None:
        return _blame(last_write(eager, outputs, path))
    if unwritten:
        found = _allocation_of(traces.replay, traces.replay_outputs)
        if found is not None:
            return _blame(found)
    ours, theirs = _launched(eager), _launched(traces.replay)
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
    return _blame(last_write(eager, outputs, path))


def last_writer(traces: Traces, step: int, paths: Sequence[str]) -> Blame:
    """For a wrong eager answer: the implementation's line below which an output was written last; no op.

    Of the outputs at `paths`, all of them wrong, it is the one that was finished first: the others may be made of it. None at
    all: any output.
    """
    records, outputs = traces.eager.get(step, []), traces.eager_outputs.get(step, {})
    writes = [write for path in paths or [""] if (write := last_write(records, outputs, path)) is not None]
    return _own_line(min(writes, key=lambda write: _place(records, write), default=None))


def parting(left: list[OpRecord], right: list[OpRecord]) -> Blame | None:
    """The first op of `left`, views included, that leaves other values than the same op of `right`; None where none does.

    Ops that only one of them has are passed over: to make a strided view contiguous takes a copy, and nothing is wrong with it.
    """
    seen: Counter[tuple[object, ...]] = Counter()
    by_key: dict[tuple[object, ...], list[OpRecord]] = {}
    for record in right:
        by_key.setdefault(_key(record), []).append(record)
    for record in left:
        key = _key(record)
        same_ops = by_key.get(key, [])
        number, seen[key] = seen[key], seen[key] + 1
        if number < len(same_ops) and not _same_record(record, same_ops[number]):
            return _own_line(record)
    return None


def writes_in_place(record: OpRecord) -> bool:
    """Whether an op wrote memory that was there before, by its name."""
    name, _, overload = record.op.partition(".")
    return name.endswith("_") or overload.endswith("out")


def last_write(records: list[OpRecord], outputs: Outputs, path: str) -> OpRecord | None:
    """The last op that wrote the output at `path`, or that made it a view of what was written; else the last that looked there.

    Any output, if there is none at `path`.
    """
    wanted = [outputs[path]] if path in outputs else list(outputs.values())
    storages, own = {output.storage for output in wanted}, [output.record for output in wanted]
    looking = [record for record in records if not storages.isdisjoint(record.storages)]
    for record in reversed(looking):
        if record.kind not in ("view", "alloc") or any(record is each for each in own):
            return record
    found = looking or records
    return found[-1] if found else None


def _place(records: list[OpRecord], wanted: OpRecord) -> int:
    return next(place for place, record in enumerate(records) if record is wanted)


def _launched(records: list[OpRecord]) -> list[OpRecord]:
    return [record for record in records if record.kind not in ("alloc", "view")]


def _key(record: OpRecord) -> tuple[object, ...]:
    return (record.op, record.location)


def _same_record(left: OpRecord, right: OpRecord) -> bool:
    return len(left.values) == len(right.values) and all(map(_same_array, left.values, right.values))


def _same_array(left: np.ndarray, right: np.ndarray) -> bool:
    return same_values(left, right)


def _allocation_of(records: list[OpRecord], outputs: set[int]) -> OpRecord | None:
    allocations = [record for record in records if record.kind == "alloc"]
    for record in allocations:
        if outputs.intersection(record.storages):
            return record
    return allocations[-1] if allocations else None


def _skipped(record: OpRecord) -> Blame:
    """An op that eager launches and the graph has not: the implementation's own line decided that it was not recorded."""
    return Blame(record.outer or record.location, record.op)


def _own_line(record: OpRecord | None) -> Blame:
    """The implementation's own line above an op; the op itself is not to blame."""
    return Blame(None, None) if record is None else Blame(record.outer or record.location, None)


def _blame(record: OpRecord | None) -> Blame:
    return Blame(None, None) if record is None else Blame(record.location, record.op)
