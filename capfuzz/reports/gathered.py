"""What a report that is one file needs: everything that the campaigns of a command said, and how the command ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone

from capfuzz.campaign.events import Event, Finished, Found, Progress, Started
from capfuzz.findings import Finding
from capfuzz.reports.files import ReportFile


@dataclass(frozen=True)
class Words:
    """How the command line, which owns these texts, tells a person of a finding: all of it, and the command that finds it
    again."""

    describe: Callable[[Found], str]
    again: Callable[[Finding], str]


@dataclass(frozen=True)
class Ending:
    """How the command ended: its exit status; if that was before its time, by what."""

    exit_status: int
    interrupted: bool = False
    problem: str | None = None
    """What capfuzz, the machine or the user's input failed with."""


@dataclass
class Ran:
    """One campaign. `finished` is None if it did not come to say so."""

    started: Started
    found: list[Found] = field(default_factory=list)
    progress: Progress | None = None
    finished: Finished | None = None

    @property
    def name(self) -> str:
        return f"{self.started.target} ({self.started.implementation})"

    @property
    def cases(self) -> int:
        known = self.finished or self.progress
        return known.cases if known is not None else 0

    @property
    def seconds(self) -> float:
        known = self.finished or self.progress
        return known.seconds if known is not None else 0.0

    @property
    def failure(self) -> str | None:
        return self.finished.failure if self.finished is not None else None


class FileReport(ABC):
    """Gathers events; `end` writes the report. Gathering cannot fail, whatever becomes of the output."""

    def __init__(self, file: ReportFile, words: Words) -> None:
        self.words = words
        self.campaigns: list[Ran] = []
        self.begun = datetime.now(timezone.utc)
        self._file = file

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.campaigns.append(Ran(event))
        elif isinstance(event, Found):
            self.campaigns[-1].found.append(event)
        elif isinstance(event, Progress):
            self.campaigns[-1].progress = event
        elif isinstance(event, Finished):
            self.campaigns[-1].finished = event

    @property
    def found(self) -> Iterator[Found]:
        for ran in self.campaigns:
            yield from ran.found

    def end(self, ending: Ending) -> None:
        """Raises `ReportError`."""
        self._file.write(self.render(ending))

    @abstractmethod
    def render(self, ending: Ending) -> bytes:
        """The whole file."""
