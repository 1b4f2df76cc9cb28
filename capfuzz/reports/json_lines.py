"""`--json`: one record a line. The records are these structs; docs/json.md tells a reader what they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from capfuzz.campaign.events import Event, Finished, Found, Progress, Started
from capfuzz.campaign.stats import Drawn
from capfuzz.devices.layout import Argument
from capfuzz.differential import Mismatch
from capfuzz.findings import Mend, SourceLine, hint
from capfuzz.findings.heat import HeatMap
from capfuzz.reports.arrays import differing
from capfuzz.reports.gathered import Ending, Words
from capfuzz.reports.text import clean
from capfuzz.targets import Case, get_target
from capfuzz.targets.case import Value
from capfuzz.version import VERSION as CAPFUZZ

VERSION: Literal[1] = 1
"""Of the schema. A field may be added without a new version; whatever else changes raises it."""
PROGRESS_SECONDS = 10.0
_MOST_INDICES = 8

Number = bool | int | float | str
Nested = Any
"""A number, or a list of them, nested as deep as the array has dimensions."""


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    values: Nested


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    where: str
    path: str
    expected_name: str
    actual_name: str
    expected: Array | str
    actual: Array | str
    captured: Array | None
    differing: int | None
    indices: list[list[int]]


class StartedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record", tag="started"):
    version: Literal[1]
    capfuzz: str
    torch: str
    target: str
    implementation: str
    device: str
    engine: str
    seed: int | None
    max_examples: int | None
    max_time: float | None


class ProgressRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record", tag="progress"):
    version: Literal[1]
    target: str
    implementation: str
    cases: int
    seconds: float
    findings: int


class FindingRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record", tag="finding"):
    version: Literal[1]
    target: str
    implementation: str
    signature: str
    verdict: str
    cause: str | None
    message: str
    blame: SourceLine | None
    hint: str | None
    mend: Mend | None
    batch: int
    case: Case
    inputs: list[dict[str, Array | Number | None]]
    difference: Difference | None
    axes: dict[str, str]
    heat: HeatMap | None
    no_heat: str | None
    flaky: bool
    note: str | None
    checks: int
    device: str
    engine: str
    seed: int | None
    entry: str | None
    is_new: bool
    not_saved: str | None
    again: str


class FinishedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record", tag="finished"):
    version: Literal[1]
    target: str
    implementation: str
    cases: int
    seconds: float
    findings: int
    coverage: dict[str, list[Value]]
    drawn: dict[str, list[tuple[Value, int]]] | None
    never_drawn: list[tuple[str, Value]] | None
    never_together: list[tuple[str, Value, str, Value]] | None
    exhausted: bool
    interrupted: bool
    failure: str | None


class EndedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record", tag="ended"):
    version: Literal[1]
    exit_status: int
    findings: int
    interrupted: bool
    problem: str | None


Record = StartedRecord | ProgressRecord | FindingRecord | FinishedRecord | EndedRecord


class JsonLines:
    """Writes each record as soon as it is known. `write` takes one line, its end included."""

    def __init__(self, write: Callable[[bytes], None], words: Words) -> None:
        self._write = write
        self._words = words
        self._started: Started | None = None
        self._next_progress = PROGRESS_SECONDS
        self._findings = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._started = event
            self._next_progress = PROGRESS_SECONDS
            self._say(_started(event))
        elif isinstance(event, Found):
            self._findings += 1
            self._say(_found(event, self._words.again(event.finding)))
        elif self._started is None:
            return
        elif isinstance(event, Progress):
            if event.seconds >= self._next_progress:
                self._next_progress = event.seconds + PROGRESS_SECONDS
                self._say(ProgressRecord(VERSION, *_whose(self._started), event.cases, event.seconds, event.findings))
        elif isinstance(event, Finished):
            self._say(_finished(event, self._started))

    def end(self, ending: Ending) -> None:
        """The last line: without it the stream is not complete."""
        self._say(EndedRecord(VERSION, ending.exit_status, self._findings, ending.interrupted, ending.problem))

    def _say(self, record: Record) -> None:
        self._write(encoded(record) + b"\n")


def encoded(record: Record) -> bytes:
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:  # lone surrogates, from names of files
        return msgspec.json.encode(_cleaned(msgspec.to_builtins(record)))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): _cleaned(inner) for name, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _whose(started: Started) -> tuple[str, str]:
    return started.target, started.implementation


def _started(event: Started) -> StartedRecord:
    return StartedRecord(
        VERSION,
        CAPFUZZ,
        str(torch.__version__),
        event.target,
        event.implementation,
        event.device,
        event.engine,
        event.seed,
        event.max_examples,
        event.max_time,
    )


def _found(event: Found, again: str) -> FindingRecord:
    finding, outcome = event.finding, event.finding.outcome
    target = get_target(finding.target)
    return FindingRecord(
        version=VERSION,
        target=finding.target,
        implementation=finding.implementation,
        signature=finding.signature,
        verdict=outcome.verdict.value,
        cause=outcome.cause,
        message=outcome.message,
        blame=finding.blame,
        hint=hint(outcome.label),
        mend=finding.mend,
        batch=target.batch(finding.case),
        case=finding.case,
        inputs=[_inputs(feed) for feed in target.feeds(finding.case)],
        difference=None if outcome.mismatch is None else _difference(outcome.mismatch),
        axes=finding.axes,
        heat=finding.heat if isinstance(finding.heat, HeatMap) else None,
        no_heat=finding.heat if isinstance(finding.heat, str) else None,
        flaky=finding.flaky,
        note=event.note,
        checks=finding.checks,
        device=finding.device,
        engine=finding.engine,
        seed=finding.seed,
        entry=None if event.path is None else str(event.path),
        is_new=event.is_new,
        not_saved=event.problem,
        again=again,
    )


def _inputs(feed: Mapping[str, Argument | Number | None]) -> dict[str, Array | Number | None]:
    return {name: _array(value.array) if isinstance(value, Argument) else value for name, value in feed.items()}


def _difference(mismatch: Mismatch) -> Difference:
    differs = differing(mismatch)
    indices = [] if differs is None else np.argwhere(differs)[:_MOST_INDICES].tolist()
    return Difference(
        mismatch.where,
        mismatch.path,
        mismatch.expected_name,
        mismatch.actual_name,
        mismatch.expected if isinstance(mismatch.expected, str) else _array(mismatch.expected),
        mismatch.actual if isinstance(mismatch.actual, str) else _array(mismatch.actual),
        None if mismatch.captured is None else _array(mismatch.captured),
        None if differs is None else int(differs.sum()),
        indices,
    )


def _array(array: np.ndarray) -> Array:
    values = array.tolist()
    return Array(str(array.dtype), list(array.shape), values if array.dtype.kind in "biu" else _sayable(values))


def _sayable(values: Any) -> Any:
    """What JSON has no number for, as text: `nan`, `inf`, `-inf`, complex numbers, whatever else an array may hold."""
    if isinstance(values, list):
        return [_sayable(value) for value in values]
    if isinstance(values, float):
        return values if math.isfinite(values) else str(values)
    return values if values is None or isinstance(values, (bool, int)) else str(values)


def _finished(event: Finished, started: Started) -> FinishedRecord:
    drawn = event.drawn
    return FinishedRecord(
        VERSION,
        *_whose(started),
        event.cases,
        event.seconds,
        event.findings,
        event.coverage,
        None if drawn is None else _counts(drawn),
        None if drawn is None else list(drawn.missing_values()),
        None if drawn is None else list(drawn.missing_pairs()),
        event.exhausted,
        event.interrupted,
        event.failure,
    )


def _counts(drawn: Drawn) -> dict[str, list[tuple[Value, int]]]:
    return {name: list(counts.items()) for name, counts in drawn.values.items()}
