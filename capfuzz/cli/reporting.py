"""The reports of `capfuzz run`: from their flags to the files, whatever way the command ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from capfuzz.campaign.campaign import Extras
from capfuzz.campaign.events import Event, Found
from capfuzz.cli.console import reproduce
from capfuzz.cli.errors import BadInputError, DefectError, HarnessError, OutputClosed, OutputFailed, output_error
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.text import finding_text
from capfuzz.findings import Finding
from capfuzz.reports import (
    Ending,
    FileReport,
    HtmlReport,
    JsonLines,
    JUnitReport,
    ReportError,
    ReportFile,
    SarifReport,
    Words,
)
from capfuzz.targets import get_target

KINDS: dict[str, type[FileReport]] = {"junit": JUnitReport, "sarif": SarifReport, "html": HtmlReport}


def report_options(command: Any) -> Any:
    """--json, --junit, --sarif, --html."""
    path = click.Path(path_type=Path)
    for decorate in (
        click.option("--html", type=path, metavar="FILE", help="Write a page that shows each finding: one file, no network."),
        click.option("--sarif", type=path, metavar="FILE", help="Write SARIF 2.1.0: code hosts annotate the guilty lines."),
        click.option("--junit", type=path, metavar="FILE", help="Write JUnit XML: a test case a finding."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, an object a line, in place of the text."),
    ):
        command = decorate(command)
    return command


class Reports:
    """Hands events to every report. Files first: printing may end the run, and they must know of the finding by then."""

    def __init__(self, files: Sequence[FileReport] = (), lines: JsonLines | None = None) -> None:
        self._files = files
        self._lines = lines
        self.findings = 0
        self.have_begun = False

    @property
    def replace_text(self) -> bool:
        """Standard output is for a program, not for a person."""
        return self._lines is not None

    @property
    def extras(self) -> Extras:
        has_page = any(isinstance(report, HtmlReport) for report in self._files)
        return Extras(heat=has_page or self._lines is not None, trace=has_page)

    def __call__(self, event: Event) -> None:
        self.findings += isinstance(event, Found)
        self.have_begun = True
        for report in self._files:
            report(event)
        if self._lines is not None:
            self._lines(event)

    def end(self, ending: Ending) -> click.ClickException | None:
        """Writes every file that can be written, then the last line. Returns what went wrong with the others."""
        wrong: list[click.ClickException] = []
        for report in self._files:
            try:
                report.end(ending)
            except ReportError as error:
                wrong.append(HarnessError(f"a report was not written: {error}"))
            except Exception as error:
                wrong.append(DefectError(error, f"capfuzz failed to make a report ({type(report).__name__})"))
        defects = [error for error in wrong if isinstance(error, DefectError)]
        problem = defects[0] if defects else HarnessError("\n".join(e.message for e in wrong)) if wrong else None
        if problem is not None and ending.problem is None:
            ending = replace(ending, exit_status=max(ending.exit_status, ExitCode.HARNESS), problem=_message(problem))
        if self._lines is not None:
            self._lines.end(ending)
        return problem


@contextlib.contextmanager
def reporting(as_json: bool, **paths: Path | None) -> Iterator[Reports]:
    """The reports of one command, by the names of their flags.

    Raises `BadInputError` before it begins where a file cannot be written, `HarnessError` where that shows at the end. However
    the body ends, the files are written, its own error going on up; only where the user's input ends it at once they are not.
    """
    files = [KINDS[kind](file, _WORDS) for kind, file in _opened(paths).items()]
    with contextlib.ExitStack() as opened:
        lines = JsonLines(opened.enter_context(_standard_output()), _WORDS) if as_json else None
        reports = Reports(files, lines)
        try:
            yield reports
        except BaseException as error:
            if isinstance(error, BadInputError) and not reports.have_begun:
                raise
            with contextlib.suppress(OSError, OutputClosed, OutputFailed):
                problem = reports.end(_ending(error))
                if problem is not None:
                    problem.show()
            raise
        problem = reports.end(Ending(ExitCode.FINDINGS if reports.findings else ExitCode.OK))
        if problem is not None:
            raise problem


def _opened(paths: Mapping[str, Path | None]) -> dict[str, ReportFile]:
    files: dict[str, ReportFile] = {}
    for kind, path in paths.items():
        if path is None:
            continue
        try:
            file = ReportFile(path)
        except ReportError as error:
            raise BadInputError(f"--{kind} {error}") from error
        for other, earlier in files.items():
            if earlier.real == file.real:
                raise BadInputError(f"--{other} and --{kind} name one file, {path}; give each its own")
        files[kind] = file
    return files


@contextlib.contextmanager
def _standard_output() -> Iterator[Callable[[bytes], None]]:
    """What writes to it. Whoever else prints meanwhile (a user's module, when it is imported) does so on standard error."""
    out = sys.stdout

    def write(line: bytes) -> None:
        if out is None:
            return
        try:
            buffer = getattr(out, "buffer", None)  # always UTF-8, whatever the terminal's encoding
            if buffer is None:
                out.write(line.decode())
            else:
                buffer.write(line)
            out.flush()
        except OSError as error:
            raise output_error(error) from error

    with contextlib.redirect_stdout(sys.stderr):
        yield write


def _ending(error: BaseException) -> Ending:
    if isinstance(error, (KeyboardInterrupt, OutputClosed)):
        return Ending(ExitCode.INTERRUPTED, interrupted=True)
    if isinstance(error, click.ClickException):
        return Ending(error.exit_code, problem=_message(error))
    return Ending(ExitCode.HARNESS, problem=str(error) or type(error).__name__)


def _message(error: click.ClickException) -> str:
    """Without what is said to a person at a terminal."""
    return error.format_message().partition("\nThis is a defect of capfuzz")[0]


def _described(found: Found) -> str:
    return finding_text(found.finding, get_target(found.finding.target), found.note)


def _again(finding: Finding) -> str:
    return reproduce(finding.target, finding.implementation, finding.engine, finding.seed)


_WORDS = Words(_described, _again)
