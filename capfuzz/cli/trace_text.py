"""The op trace of one capture as text for a person: ops in aligned columns under the source line that launched them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from capfuzz.cli.text import array_text, counted, field
from capfuzz.devices.trace import Location, Operand, OpRecord
from capfuzz.differential import Outcome
from capfuzz.findings import hint
from capfuzz.findings.finding import portable_path, source_line

WIDTH = 100
_INDENT = 4
# The most that a column takes before its cells go on in the next line.
_OP, _READ, _WRITTEN = 28, 30, 20
_FIELD = 13  # what `field` puts in front of a text
_STYLES = {"view": "dim", "host": "cyan", "baked": "yellow", "at once": "magenta"}

Line = tuple[str, str | None]  # a line, and its style on a terminal


def trace_lines(records: Sequence[OpRecord]) -> list[Line]:
    """Every op in order. Ops that one line launches one after the other stand under it once."""
    rows = [_Row(record) for record in records]
    widths = (
        max((len(row.op) for row in rows if len(row.op) <= _OP), default=0),
        max((len(line) for row in rows for line in row.read), default=0),
        max((len(line) for row in rows for line in row.written), default=0),
    )
    lines: list[Line] = []
    for source, group in groupby(rows, key=lambda row: row.source):
        lines.append((source, "bold"))
        lines += [(line, row.style) for row in group for line in row.lines(*widths)]
    return lines


def summary(records: Sequence[OpRecord], failed: bool) -> str:
    """How many ops there were, and what became of them; what is rare is left out where there is none of it."""
    counts = Counter(record.fate for record in records)
    parts = [
        f"{counts['recorded']} recorded",
        counted(counts["view"], "view"),
        f"{counts['host']} host",
        f"{counts['baked']} baked",
        *(f"{counts[fate]} {fate}" for fate in ("alloc", "at once") if counts[fate]),
    ]
    return f"{counted(len(records), 'op')}{' before the error' if failed else ''}: {', '.join(parts)}"


def failure_text(outcome: Outcome, warm_up: bool) -> str:
    """What ended the capture: the rule, CUDA's words, the guilty line, how to mend it."""
    lines = [f"FAILED   {outcome.label}{', before the capture: the eager call to warm up raised' if warm_up else ''}"]
    line = source_line(outcome)
    if line is None:
        lines.append(field("line", f"no line could be blamed{'' if warm_up else ': this shows when the capture ends'}"))
    else:
        op = f"\nlowers to {line.op}" if line.op else ""
        lines.append(field("line", f"{line.file}:{line.line} in {line.function}\n    {line.text}{op}"))
    lines.append(field("message", _filled(outcome.message)))
    advice = hint(outcome.label)
    return "\n".join(lines + ([field("mend", _filled(advice))] if advice else []))


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH - _FIELD, break_long_words=False, break_on_hyphens=False)


def _source(location: Location | None) -> str:
    if location is None:
        return "(no line of yours)"
    text = f"{portable_path(location)}:{location.line}  {location.text}"
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


class _Row:
    """One op: its cells, each folded into lines that fit its column."""

    def __init__(self, record: OpRecord) -> None:
        self.source = _source(record.location)
        self.op = record.op
        self.read = _folded(_operands(record.read), _READ)
        self.written = _folded(_operands(record.written), _WRITTEN)
        self.fate = record.fate
        self.baked = [_value(value) for value in record.baked]
        self.style = _STYLES.get(record.fate)

    def lines(self, op: int, read: int, written: int) -> list[str]:
        used = _INDENT + op + 2 + read + 4 + written + 2
        fate = _folded([f"{self.fate} {self.baked[0]}", *self.baked[1:]] if self.baked else [self.fate], WIDTH - used)
        fits = len(self.op) <= op
        lines = [] if fits else [f"{'':{_INDENT}}{self.op}"]  # the other cells stand below it
        heads = [self.op] if fits else []
        for number in range(max(len(self.read), len(self.written), len(fate))):
            arrow = "->" if number == 0 and self.written else "  "
            cells = (_at(heads, number), _at(self.read, number), _at(self.written, number), _at(fate, number))
            lines.append(
                f"{'':{_INDENT}}{cells[0]:<{op}}  {cells[1]:<{read}} {arrow} {cells[2]:<{written}}  {cells[3]}".rstrip()
            )
        return lines


def _at(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


def _operands(operands: Sequence[Operand]) -> list[str]:
    """`int32[3]`, `cpu int32[3]` for host memory; the same several times over is counted."""
    texts = []
    for operand in operands:
        shape = ",".join(map(str, operand.shape))
        texts.append(f"{'cpu ' if operand.device == 'cpu' else ''}{operand.dtype}[{shape}]")
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return [text if times == 1 else f"{text} x{times}" for text, times in runs]


def _folded(items: Sequence[str], width: int) -> list[str]:
    """The items with commas between them, in lines of at most `width` where an item fits one."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= width:
            lines[-1] += f", {item}"
        else:
            if lines:
                lines[-1] += ","
            lines.append(item)
    return lines


def _value(value: object) -> str:
    return array_text(np.array(value)) if isinstance(value, list) else str(value)
