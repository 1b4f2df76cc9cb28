"""The page: all that is known of a finding, everything escaped, nothing from elsewhere. `test_browser` has it in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest

from capfuzz.campaign.events import Event, Finished, Found, Started
from capfuzz.devices.trace import OpRecord, SourceLocation
from capfuzz.differential import Blame, Mismatch, Outcome, Verdict
from capfuzz.findings.heat import Cell, HeatMap
from capfuzz.reports import Ending, HtmlReport
from capfuzz.reports.op_rows import MOST_OPS, op_table
from capfuzz.reports.source import AROUND, excerpt
from capfuzz.reports.text import case_fields
from capfuzz.targets import Case, get_target
from capfuzz.targets.op_trace import OpTrace

Events = Callable[..., list[Event]]
Render = Callable[..., bytes]
STARTED = Started("fold_indptr", "shipped", "sim", "hypothesis", 1, 100, None)
EMPTY = {"meta", "link", "br", "img", "input", "hr", "wbr"}  # elements that are never closed


class Page(HTMLParser):
    """A page as text, with its tags; every element is closed in its place."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(data.decode("utf-8"))
        self.close()
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> is not where it belongs"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def classes(self, tag: str, name: str) -> int:
        return sum(each == tag and name in (attrs.get("class") or "").split() for each, attrs in self.tags)


@pytest.fixture
def page(render: Render) -> Callable[..., Page]:
    return lambda told, ending=None: Page(render(HtmlReport, told, ending))


Show = Callable[..., Page]


def test_a_page_needs_nothing_from_elsewhere(events: Events, render: Render) -> None:
    data = render(HtmlReport, [*events(), *events("token_to_req_indices", "variant:host_count")])
    page = Page(data)
    assert not {"script", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    links = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("href", "src", "srcset", "action")]
    assert links
    assert all(link is not None and link.startswith(("#", "data:")) for link in links)
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert not re.search(rb"url\(|@import", data)
    assert len(data) < 60_000


def test_a_capture_error_is_told_whole(events: Events, page: Show) -> None:
    shown = page(events())
    for text in (
        "1 finding: fold_indptr (variant:scalar_store)",
        "capture_error:host_copy",
        "Cannot copy between CPU and CUDA tensors",
        "in scalar_store , lowers to copy_",
        "out[:1].zero_()",
        "indptr: int32[1]",
        "fold_factor = 1",
        "any (tried 0, 1, 2, 8, 37)",
        "No map: no axis matters.",
        "The capture ended with capture_error:host_copy",
        "capfuzz run fold_indptr",
        "capture_error-host_copy-7f02ddc8",
        "hypothesis engine, seed 1",
    ):
        assert text in shown.text
    assert shown.classes("tr", "guilty") == 1
    assert shown.classes("div", "ops") >= 2
    assert shown.classes("div", "guilty") == 1


def test_a_divergence_marks_the_cells_that_differ(events: Events, page: Show) -> None:
    shown = page(events("token_to_req_indices", "variant:host_count"))
    assert "output, replay 2 (changed inputs 1)" in shown.text
    assert "1 of 1 elements differ" in shown.text
    assert shown.classes("td", "differs") == 1
    assert shown.classes("td", "changed") == 2, "one element of each of the two offsets has changed"
    assert "of the axes only padding matters" in shown.text


def test_a_heat_map_is_words_in_cells(finding: Callable[..., Found], page: Show) -> None:
    cells = [[Cell.HOLDS, Cell.FAILS], [Cell.FAILS, Cell.OTHER], [Cell.NOT_LEGAL, Cell.NOT_TRIED]]
    heat = HeatMap("batch", "fold_factor", [1, 2, 3], [4, 8], cells, 1, 0, True)
    shown = page([STARTED, finding(heat=heat)])
    assert "batch and fold_factor interact" in shown.text
    for cell in Cell:
        assert shown.classes("td", cell.value) == sum(row.count(cell) for row in cells)
        assert shown.classes("span", cell.value) == 1, "each has its place in the legend"
    assert shown.classes("td", "minimal") == 1
    for word in ("fail", "ok", "else", "n/a", "?"):
        assert f" {word} " in shown.text
    alone = (
        replace(heat, interact=False)
        if hasattr(heat, "__dataclass_fields__")
        else msgspec.structs.replace(heat, interact=False)
    )
    assert "do not interact" in page([STARTED, finding(heat=alone)]).text


def test_what_is_missing_is_said(finding: Callable[..., Found], page: Show) -> None:
    found = finding(heat="time ran out", axes={}, flaky=True)
    error = Outcome(Verdict.CRASH, None, "the process ended: killed by SIGSEGV")
    for trace, said in (
        (None, "No trace: the run ended before."),
        ("capfuzz failed to take it: ValueError: x", "No trace: capfuzz failed to take it: ValueError: x."),
        (OpTrace([], error), "No trace: taking it ended with crash: the process ended: killed by SIGSEGV."),
    ):
        told = replace(found, trace=trace, note="not fully minimised: time ran out", problem="corpus: no space", path=None)
        text = page([STARTED, told]).text
        assert said in text
        for line in ("Flaky: it did not show every time", "not fully minimised", "Not saved: corpus: no space", "No map: time"):
            assert line in text
        assert "The axes were not varied" in text
    bare = replace(found, finding=replace(found.finding, outcome=Outcome(Verdict.HANG), heat=None))
    text = page([STARTED, bare]).text
    assert "No line could be blamed" in text
    assert "No map: the run ended before." in text


def test_an_empty_trace_is_a_trace(finding: Callable[..., Found], page: Show) -> None:
    shown = page([STARTED, replace(finding(), trace=OpTrace([]))])
    assert "0 ops" in shown.text
    assert "No trace" not in shown.text


@pytest.mark.parametrize(
    ("told", "ending", "said"),
    [
        ([], Ending(130, interrupted=True), "The run was interrupted"),
        (
            [Finished(7, 1.0, 0, interrupted=True, failure="a defect")],
            Ending(3, problem="a defect"),
            "The run failed before its end",
        ),
        ([Finished(7, 1.0, 0, exhausted=True)], Ending(0), "7 cases in 1.0 s: all there are"),
    ],
)
def test_how_the_run_ended_is_said(page: Show, told: list[Event], ending: Ending, said: str) -> None:
    shown = page([STARTED, *told], ending)
    assert said in shown.text
    assert "no findings: fold_indptr (shipped)" in shown.text


def test_several_campaigns_are_one_page(events: Events, page: Show) -> None:
    shown = page([*events(), *events("fold_indptr", "shipped"), *events("fold_indptr", "variant:item_read")])
    assert "2 findings: 3 campaigns" in shown.text
    anchors = [attrs["id"] for _, attrs in shown.tags if "id" in attrs]
    links = [attrs["href"] for tag, attrs in shown.tags if tag == "a"]
    assert anchors == ["finding-1", "finding-2"]
    assert links == ["#finding-1", "#finding-2"]


def test_no_text_of_the_code_under_test_is_markup(finding: Callable[..., Found], page: Show) -> None:
    bad = "</code></script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b\udcff"
    found = finding()
    mismatch = Mismatch(bad, bad, bad, bad, bad, np.zeros(2))
    blame = Blame(SourceLocation(f"/{bad}/{bad}.py", 3, bad, bad), bad)
    outcome = Outcome(Verdict.DIVERGENCE, bad, bad, blame, mismatch)
    record = OpRecord(bad, blame.location, baked=(bad,))  # type: ignore[arg-type]
    told = replace(
        found,
        finding=replace(found.finding, outcome=outcome, axes={bad: bad}, heat=bad, implementation=f"user:{bad}", signature=bad),
        path=Path(bad),
        problem=bad,
        note=bad,
        trace=OpTrace([record], outcome),
    )
    started = replace(STARTED, implementation=bad, device=bad)
    finished = Finished(1, 1.0, 1, coverage={bad: [bad]}, interrupted=True, failure=bad)
    shown = page([started, told, finished], Ending(3, problem=bad))
    assert {"script", "img"} & {tag for tag, _ in shown.tags} == set()
    assert shown.text.count("onerror=alert(1)>\\x1b\\udcff") > 20


def test_an_excerpt_is_what_lies_around_the_line(finding: Callable[..., Found], tmp_path: Path) -> None:
    def around(number: int, text: str) -> list[tuple[int, str]]:
        location = SourceLocation(str(tmp_path / "mine.py"), number, "f", text)
        shown = excerpt(finding(outcome=Outcome(Verdict.CRASH, blame=Blame(location, None))).finding)
        assert shown is not None
        assert shown.guilty == number
        return shown.lines

    lines = ["def before():", "    pass", "", "", "def f(x):", "    if x:", "        y = 1", "    return y", "", "", "after()"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    assert around(7, "y = 1") == [(5, "def f(x):"), (6, "    if x:"), (7, "        y = 1"), (8, "    return y")]
    assert around(6, "an older line") == [(6, "an older line")], "the file is not what it was"
    assert around(99, "gone") == [(99, "gone")]
    (tmp_path / "long.py").write_text("".join(f"    line({n})\n" for n in range(1, 40)))
    location = SourceLocation(str(tmp_path / "long.py"), 20, "f", "line(20)")
    shown = excerpt(finding(outcome=Outcome(Verdict.CRASH, blame=Blame(location, None))).finding)
    assert shown is not None
    assert [number for number, _ in shown.lines] == list(range(20 - AROUND, 21 + AROUND))
    assert shown.lines[0][1] == f"line({20 - AROUND})", "without the indentation that all of them have"


def test_whatever_else_a_case_has_is_shown() -> None:
    class Driven(Case, frozen=True):
        driven: dict[str, object] = msgspec.field(default_factory=dict)
        twice: bool | None = None
        note: str | None = None

    case = Driven(
        {"fold_factor": 1, "dtype": "int32", "layout": "offset"},
        [{"lengths": [2], "start": 0}],
        driven={"warm_ups": [0, 2]},
        twice=False,
    )
    assert case_fields(get_target("fold_indptr"), case) == [
        ("batch", "1"),
        ("fold_factor", "1"),
        ("dtype", "int32"),
        ("layout", "offset"),
        ("changed inputs", "0"),
        ("driven", "warm_ups [0, 2]"),
        ("twice", "False"),
    ]


def test_a_long_trace_is_cut() -> None:
    location = SourceLocation("/x.py", 1, "f", "loop()")
    table = op_table(OpTrace([OpRecord("add", location)] * (MOST_OPS + 5)), Outcome(Verdict.CRASH))  # type: ignore[arg-type]
    assert sum(len(group.rows) for group in table.groups) == MOST_OPS
    assert table.summary == f"{MOST_OPS + 5} ops: {MOST_OPS + 5} recorded, the last 5 ops not shown"
