"""`--html FILE`: one page that needs no network and no script; light or dark as the reader has it, on a phone too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from capfuzz.campaign.events import Found
from capfuzz.devices.layout import Argument
from capfuzz.findings import Finding, SourceLine, advice
from capfuzz.findings.heat import Cell, HeatMap
from capfuzz.reports.arrays import Comparison, Grid, compared, drawn
from capfuzz.reports.gathered import Ending, FileReport, Ran, Words
from capfuzz.reports.op_rows import OpTable, op_table
from capfuzz.reports.source import Excerpt, excerpt
from capfuzz.reports.text import case_fields, clean, counted, other_fields
from capfuzz.targets import Target, get_target
from capfuzz.targets.op_trace import OpTrace
from capfuzz.version import VERSION

_SHOWN = {
    Cell.FAILS: ("fail", "this fault shows"),
    Cell.OTHER: ("else", "another fault shows"),
    Cell.HOLDS: ("ok", "no fault shows"),
    Cell.NOT_LEGAL: ("n/a", "not legal with the rest of the case"),
    Cell.NOT_TRIED: ("?", "not tried: time ran out"),
}


_ENDED = "the run ended before"


@dataclass(frozen=True)
class Step:
    """The arguments of one step: its arrays drawn, the scalars as they are."""

    name: str
    arrays: list[Grid]
    scalars: list[tuple[str, str]]


@dataclass(frozen=True)
class HeatView:
    """The map with the words for its cells, and what it shows; `legend` has the cells that occur."""

    map: HeatMap
    words: dict[Cell, str]
    legend: list[tuple[Cell, str, str]]
    said: str


@dataclass(frozen=True)
class FindingView:
    """One finding as the template shows it. `no_heat` and `no_trace` say why there is none, `not_followed`
    what of the case the trace knows nothing of."""

    anchor: str
    finding: Finding
    found: Found
    blame: SourceLine | None
    excerpt: Excerpt | None
    hint: list[tuple[str, bool]]
    fields: list[tuple[str, str]]
    steps: list[Step]
    comparison: Comparison | None
    axes: list[tuple[str, bool, str]]
    heat: HeatView | None
    no_heat: str
    trace: OpTable | None
    no_trace: str | None
    not_followed: str
    again: str


class HtmlReport(FileReport):
    def render(self, ending: Ending) -> bytes:
        views: dict[int, list[FindingView]] = {}
        count = 0
        for number, ran in enumerate(self.campaigns):
            views[number] = [_view(found, f"finding-{count + i}", self.words) for i, found in enumerate(ran.found, 1)]
            count += len(ran.found)
        page = (
            _environment()
            .get_template("report.html")
            .render(
                title=_title(count, self.campaigns),
                campaigns=[(ran, views[number], _coverage(ran)) for number, ran in enumerate(self.campaigns)],
                ending=ending,
                begun=self.begun.strftime("%Y-%m-%d %H:%M UTC"),
                versions=f"capfuzz {VERSION}, torch {torch.__version__}",
            )
        )
        return page.encode("utf-8")


def _environment() -> Environment:
    """Everything is escaped, and a name that the template has and the page has not is an error."""
    environment = Environment(
        loader=PackageLoader("capfuzz.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    filters: dict[str, Callable[..., str]] = {"counted": counted, "number": lambda number: f"{number:,}"}
    environment.filters |= filters
    return environment


def _clean(value: Any) -> Any:
    return value if hasattr(value, "__html__") else clean(str(value))


def _title(findings: int, campaigns: list[Ran]) -> str:
    what = counted(findings, "finding") if findings else "no findings"
    where = campaigns[0].name if len(campaigns) == 1 else counted(len(campaigns), "campaign")
    return f"{what}: {where}"


def _coverage(ran: Ran) -> list[tuple[str, str]]:
    coverage = ran.finished.coverage if ran.finished is not None else {}
    return [(name, ", ".join(map(str, values))) for name, values in coverage.items()]


def _view(found: Found, anchor: str, words: Words) -> FindingView:
    finding = found.finding
    target = get_target(finding.target)
    mismatch = finding.outcome.mismatch
    no_trace = _no_trace(found.trace)
    trace = found.trace if isinstance(found.trace, OpTrace) and no_trace is None else None
    return FindingView(
        anchor,
        finding,
        found,
        finding.faulty,
        excerpt(finding),
        _marked_code(advice(finding.outcome.label, finding.mend)),
        case_fields(target, finding.case),
        _steps(target, finding),
        None if mismatch is None else compared(mismatch),
        [(name, not text.startswith(("any", "needs no")), text) for name, text in finding.axes.items()],
        _heat(finding.heat) if isinstance(finding.heat, HeatMap) else None,
        finding.heat if isinstance(finding.heat, str) else _ENDED,
        None if trace is None else op_table(trace, finding.outcome),
        no_trace,
        ", ".join(name for name, _ in other_fields(finding.case)),
        words.again(finding),
    )


def _marked_code(text: str | None) -> list[tuple[str, bool]]:
    """A text as its parts, and which of them are code: what stands between backticks."""
    return [(part, number % 2 == 1) for number, part in enumerate((text or "").split("`")) if part]


def _steps(target: Target, finding: Finding) -> list[Step]:
    steps = []
    feeds = target.feeds(finding.case)
    captured = {key: value.array for key, value in feeds[0].items() if isinstance(value, Argument)}
    for number, feed in enumerate(feeds):
        name = f"changed inputs {number}" if number else "captured inputs"
        arrays = [drawn(key, value.array, captured[key]) for key, value in feed.items() if isinstance(value, Argument)]
        scalars = [(key, str(value)) for key, value in feed.items() if not isinstance(value, Argument)]
        steps.append(Step(name, arrays, scalars))
    return steps


def _heat(heat: HeatMap) -> HeatView:
    met = {cell for row in heat.cells for cell in row}
    said = {
        True: f"{heat.rows} and {heat.columns} interact: whether it fails depends on both values together.",
        False: f"{heat.rows} and {heat.columns} do not interact: it fails where both values do by themselves.",
        None: f"Too few cells are known to say whether {heat.rows} and {heat.columns} interact.",
    }
    return HeatView(
        heat,
        {cell: word for cell, (word, _) in _SHOWN.items()},
        [(cell, *_SHOWN[cell]) for cell in _SHOWN if cell in met],
        said[heat.interact],
    )


def _no_trace(trace: OpTrace | str | None) -> str | None:
    if trace is None or isinstance(trace, str):
        return trace or _ENDED
    error = trace.error
    if error is None or trace.records:
        return None
    return f"taking it ended with {error.label}{f': {error.message}' if error.message else ''}"
