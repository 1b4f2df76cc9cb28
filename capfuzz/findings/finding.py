"""What a finding is, and when two findings are the same fault."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import PurePath

import msgspec

from capfuzz.devices.trace import Location, SourceLocation
from capfuzz.differential import OUT_OF_MEMORY, Outcome, Verdict
from capfuzz.findings.heat import HeatMap
from capfuzz.targets.case import Case
from capfuzz.targets.mending import Mended


class SourceLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The guilty line: a path without a machine's directories, and the op that the line lowered to."""

    file: str
    line: int
    function: str
    text: str
    op: str | None = None


class Mend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An edit that gives the right answers: the faulty line, its statement, what goes in its place (empty: nothing), and in how
    many cases that was tried.
    """

    line: SourceLine
    before: str
    after: str
    cases: int


@dataclass(frozen=True)
class Finding:
    """One fault of one implementation, minimised."""

    target: str
    implementation: str
    case: Case
    outcome: Outcome
    signature: str
    seed: int | None
    device: str
    engine: str
    checks: int = 0
    axes: dict[str, str] = field(default_factory=dict)
    flaky: bool = False
    heat: HeatMap | str | None = None
    """Two axes that matter, varied together; or why there is no map; None where nobody asked for one."""

    mended: Mended | None = None
    """The edit that gives the right answers, where one was found."""

    @property
    def blame(self) -> SourceLine | None:
        """The line that the fault is named after."""
        return source_line(self.outcome)

    @property
    def location(self) -> Location | SourceLocation | None:
        """The faulty line: the one that an edit mends, where one was found; else the one to blame."""
        return self.outcome.blame.location if self.mended is None else self.mended.location

    @property
    def faulty(self) -> SourceLine | None:
        """`location` as reports have it."""
        return self.blame if self.mend is None else self.mend.line

    @property
    def mend(self) -> Mend | None:
        """`mended` as reports and entries have it."""
        found = self.mended
        return None if found is None else Mend(_source_line(found.location, None), found.before, found.after, found.cases)


def source_line(outcome: Outcome) -> SourceLine | None:
    """The blamed line of an outcome, or None where no line could be blamed."""
    location = outcome.blame.location
    return None if location is None else _source_line(location, outcome.blame.op)


def _source_line(location: Location | SourceLocation, op: str | None) -> SourceLine:
    return SourceLine(portable_path(location), location.line, location.function, location.text, op)


def portable_path(location: Location | SourceLocation) -> str:
    """The file as a reader of the entry knows it: below the working directory, else as its module is imported."""
    path = os.path.abspath(location.file)
    here = os.getcwd() + os.sep
    if path.startswith(here) and "site-packages" not in path:
        return PurePath(path[len(here) :]).as_posix()
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == location.file and name != "__main__":
            package = name.replace(".", "/")
            return f"{package}/__init__.py" if os.path.basename(path) == "__init__.py" else f"{package}.py"
    return os.path.basename(path)


def signature(target: str, outcome: Outcome) -> str:
    """The name of a fault: target, verdict and cause, the blamed line's text without its spacing, and the op.

    The same fault has the same signature on another day, with another seed, engine or device, and after its line has moved.
    """
    return fault_name(target, outcome.verdict, outcome.cause, source_line(outcome), outcome.blame.op)


def fault_name(target: str, verdict: Verdict, cause: str | None, line: SourceLine | None, op: str | None) -> str:
    """The signature of a fault from its parts."""
    label = f"{verdict.value}:{cause}" if cause else verdict.value
    text = re.sub(r"\s+", " ", line.text).strip() if line else ""
    if line and (verdict is Verdict.HANG or cause == OUT_OF_MEMORY):  # where it was met is a matter of chance
        text = line.function
    digest = hashlib.sha256("\x00".join((target, label, text, (op or "").split(".")[0])).encode()).hexdigest()[:8]
    return f"{label.replace(':', '-')}-{digest}"
