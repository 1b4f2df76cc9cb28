"""Source lines: the excerpt around the guilty one, and the paths by which a code host knows files."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass
from pathlib import Path, PurePath

from capfuzz.devices.trace import Location, SourceLocation, code_of
from capfuzz.differential import callables_of
from capfuzz.findings import Finding
from capfuzz.findings.finding import portable_path
from capfuzz.targets.subjects import ImplementationError, subject_from_label

AROUND = 4  # lines on each side


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file as (number, text); `guilty` is the number of the blamed one."""

    lines: list[tuple[int, str]]
    guilty: int


def excerpt(finding: Finding) -> Excerpt | None:
    """The lines around the guilty one, without the indentation that they share; that one alone if the file has changed."""
    location = finding.location
    if location is None:
        return None
    source = linecache.getlines(location.file)
    number = location.line
    if not (0 < number <= len(source) and source[number - 1].strip() == location.text):
        return Excerpt([(number, location.text)], number)
    lines = [line.rstrip().expandtabs(4) for line in source]
    first = last = number
    while first > max(1, number - AROUND) and not _is_apart(lines[max(0, first - 3) : first - 1]):
        first -= 1
    while last < min(len(lines), number + AROUND) and not _is_apart(lines[last : last + 2]):
        last += 1
    shown = lines[first - 1 : last]
    indent = min((len(line) - len(line.lstrip()) for line in shown if line), default=0)
    return Excerpt([(first + index, line[indent:]) for index, line in enumerate(shown)], number)


def _is_apart(between: list[str]) -> bool:
    """Two blank lines: what lies beyond is another function."""
    return between == ["", ""]


def implementation_begins(finding: Finding) -> Location | None:
    """The line of the implementation's `def`: for a fault without a line of its own. None where that cannot be told."""
    try:
        function = subject_from_label(finding.target, finding.implementation).function
    except ImplementationError:  # its file has gone
        return None
    code = code_of(callables_of(function)[-1])  # of two parts the captured one
    return None if code is None else Location(code, code.co_firstlineno)


def repository_path(location: Location | SourceLocation) -> str:
    """The file below the repository that the working directory is in; else as a reader of an entry knows it."""
    path, root = os.path.abspath(location.file), _repository(os.getcwd())
    if path.startswith(root + os.sep) and "site-packages" not in path:
        return PurePath(path).relative_to(root).as_posix()
    return portable_path(location)


def _repository(directory: str) -> str:
    here = Path(directory)
    return str(next((each for each in (here, *here.parents) if (each / ".git").exists()), here))
