"""The op trace as a page shows it: ops under the source line that launched them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from capfuzz.devices.trace import Location, Operand, OpRecord, SourceLocation
from capfuzz.differential import Outcome
from capfuzz.findings.finding import portable_path
from capfuzz.reports.text import counted
from capfuzz.targets.op_trace import OpTrace

MOST_OPS = 400
_MOST_BAKED = 80  # characters


@dataclass(frozen=True)
class OpRow:
    op: str
    read: str
    written: str
    fate: str
    baked: str


@dataclass(frozen=True)
class OpGroup:
    """Ops that one line launched one after the other; `guilty`: it is the blamed line."""

    source: str
    text: str
    guilty: bool
    rows: list[OpRow]


@dataclass(frozen=True)
class OpTable:
    groups: list[OpGroup]
    summary: str
    ended: str | None
    """What ended the capture before its time."""


def op_table(trace: OpTrace, found: Outcome) -> OpTable:
    """`found` is the outcome that the trace is shown with: its line is marked."""
    groups = [
        OpGroup(*_source(location), _is_same(location, found.blame.location), [_row(record) for record in records])
        for location, records in groupby(trace.records[:MOST_OPS], key=lambda record: record.location)
    ]
    counts = Counter(record.fate for record in trace.records)
    parts = [f"{count:,} {fate}" for fate, count in counts.most_common()]
    left_out = len(trace.records) - MOST_OPS
    parts += [f"the last {counted(left_out, 'op')} not shown"] if left_out > 0 else []
    fates = f": {', '.join(parts)}" if parts else ""
    return OpTable(groups, f"{counted(len(trace.records), 'op')}{fates}", _ended(trace))


def _ended(trace: OpTrace) -> str | None:
    error = trace.error
    if error is None:
        return None
    what = "The eager call before the capture ended with" if trace.warm_up else "The capture ended with"
    return f"{what} {error.label}{f': {error.message}' if error.message else ''}"


def _source(location: Location | SourceLocation | None) -> tuple[str, str]:
    if location is None:
        return "no line of the implementation", ""
    return f"{portable_path(location)}:{location.line}", location.text


def _is_same(one: Location | SourceLocation | None, other: Location | SourceLocation | None) -> bool:
    return one is not None and other is not None and (one.file, one.line) == (other.file, other.line)


def _row(record: OpRecord) -> OpRow:
    baked = ", ".join(str(value) for value in record.baked)
    if len(baked) > _MOST_BAKED:
        baked = f"{baked[:_MOST_BAKED]}..."
    return OpRow(record.op, _operands(record.read), _operands(record.written), record.fate, baked)


def _operands(operands: Sequence[Operand]) -> str:
    """`int32[3]`, `cpu int32[3]` for host memory; the same several times over is counted."""
    texts = [
        f"{'cpu ' if operand.device == 'cpu' else ''}{operand.dtype}[{','.join(map(str, operand.shape))}]"
        for operand in operands
    ]
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return ", ".join(text if times == 1 else f"{text} x{times}" for text, times in runs)
