"""Findings and outcomes as text for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from capfuzz.corpus import Entry
from capfuzz.devices.layout import Argument
from capfuzz.differential import Mismatch, Outcome
from capfuzz.findings import Finding, SourceLine, advice
from capfuzz.targets import Case, Target

ELEMENTS_SHOWN = 12
ROWS_SHOWN = 8
_WIDTH = 11


def field(name: str, text: str) -> str:
    """One labelled line; continuation lines are indented below it."""
    first, *rest = text.splitlines() or [""]
    return "\n".join([f"  {name:<{_WIDTH}}{first}", *(f"  {'':<{_WIDTH}}{line}" for line in rest)])


def counted(number: int, noun: str) -> str:
    """`1 case`, `2 cases`, `2 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def summary(entries: int, counts: Mapping[str, int]) -> str:
    """`3 entries: 2 KEPT, 1 REMOVED`."""
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{counted(entries, 'entry')}: {shown or 'nothing'}"


def finding_text(finding: Finding, target: Target, note: str | None = None) -> str:
    """A finding: verdict, line, what CUDA says, the minimal case, what differs, the axes that matter, how to mend it.

    `note` says what the finding lacks.
    """
    lines = [f"FINDING  {finding.outcome.label}  in {finding.target} ({finding.implementation})", *_where(finding.faulty)]
    lines += [field("message", finding.outcome.message)] if finding.outcome.message else []
    if finding.flaky:
        lines.append(field("flaky", "did not show every time the same case was run; not minimised"))
    lines.append(field("case", case_text(target, finding.case)))
    lines += [field("note", note)] if note else []
    if finding.outcome.mismatch is not None:
        lines.append(field("differs", mismatch_text(finding.outcome.mismatch)))
    lines += _axes(finding.axes)
    return "\n".join([*lines, *_mend(advice(finding.outcome.label, finding.mend))])


def entry_text(entry: Entry, target: Target, outcome: Outcome | None = None) -> str:
    """An entry as `show` prints it; `outcome` is what replaying it gave just now."""
    lines = [f"{entry.label}  in {entry.target} ({entry.implementation})", *_where(entry.faulty)]
    lines += [field("message", entry.message)] if entry.message else []
    lines.append(field("case", case_text(target, entry.case)))
    if outcome is not None and outcome.mismatch is not None:
        lines.append(field("differs", mismatch_text(outcome.mismatch)))
    lines += [*_axes(entry.axes), *_mend(advice(entry.label, entry.mend))]
    lines.append(field("expect", entry.expect.value + (f" ({entry.issue})" if entry.issue else "")))
    found = entry.found
    seed = "" if found.seed is None else f", seed {found.seed}"
    lines.append(
        field("found", f"on {found.device} by the {found.engine} engine{seed}, capfuzz {found.capfuzz}, torch {found.torch}")
    )
    return "\n".join(lines)


def _where(line: SourceLine | None) -> list[str]:
    if line is None:
        return [field("line", "no line could be blamed")]
    op = f"\nlowers to {line.op}" if line.op else ""
    return [field("line", f"{line.file}:{line.line} in {line.function}\n    {line.text}{op}")]


def _mend(how: str | None) -> list[str]:
    return [field("mend", how)] if how else []


def _axes(axes: dict[str, str]) -> list[str]:
    if not axes:
        return []
    return [field("axes", "\n".join(f"{name}: {text}" for name, text in axes.items()))]


def case_text(target: Target, case: Case) -> str:
    """The axes on one line, then the arrays of each step."""
    values = [f"batch {target.batch(case)}", *(f"{name} {value}" for name, value in case.values.items())]
    changes = len(case.steps) - 1
    lines = [", ".join(values) + ("" if changes else ", no changed inputs")]
    needs = case.schedule.needs()
    lines += [f"needs {'; '.join(needs)}"] if needs else []
    for index, feed in enumerate(target.feeds(case)):
        label = "captured" if index == 0 else f"change {index}"
        for name, value in feed.items():
            if isinstance(value, Argument):
                lines.append(f"{label}  {name} = {array_text(value.array)}")
    return "\n".join(lines)


def array_text(array: np.ndarray) -> str:
    if array.size <= ELEMENTS_SHOWN:
        return str(array.tolist())
    flat = array.ravel()
    shown = ", ".join(str(v) for v in flat[: ELEMENTS_SHOWN - 2].tolist())
    return f"[{shown}, ..., {flat[-1].item()}] ({array.size} elements)"


def mismatch_text(mismatch: Mismatch) -> str:
    """The first differing elements side by side; where both are not arrays of one shape, what each side is."""
    lines = [f"{mismatch.path}, {mismatch.where}"]
    left, right = mismatch.expected, mismatch.actual
    if isinstance(left, str) or isinstance(right, str) or left.shape != right.shape:
        return "\n".join([*lines, f"{mismatch.expected_name}: {_side(left)}", f"{mismatch.actual_name}: {_side(right)}"])
    captured = mismatch.captured if mismatch.captured is not None and mismatch.captured.shape == left.shape else None
    header = ["at", mismatch.expected_name, mismatch.actual_name, *(["captured inputs gave"] if captured is not None else [])]
    rows: list[Sequence[str]] = [header]
    for at in mismatch.indices(ROWS_SHOWN):
        row = [str(list(at)), str(left[at].item()), str(right[at].item())]
        rows.append(row + ([str(captured[at].item())] if captured is not None else []))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    total = int((left != right).sum())
    return "\n".join([*lines, f"{total} of {left.size} elements differ"])


def _side(side: np.ndarray | str) -> str:
    return side if isinstance(side, str) else f"shape {list(side.shape)}, {array_text(side)}"
