"""What the verbs that take corpus entries share: which files are meant, and the implementation that each one is judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.errors import BadInputError, judging_failed
from capfuzz.cli.pools import Pools
from capfuzz.corpus.replay import subject_of
from capfuzz.differential import Implementation, Outcome
from capfuzz.targets import Case, Subject
from capfuzz.workers import JudgeFailed, WorkerError


def given(entries: Sequence[Path]) -> list[Path]:
    """The entry files that the arguments name; those of the default corpus where there are none. Raises `BadInputError`."""
    for path in entries:
        if not path.exists():
            raise BadInputError(f"{path}: no such file or directory")
    if not entries and not options.DEFAULT_CORPUS.is_dir():
        raise BadInputError("there is no corpus directory here; name entries or a directory, or run `capfuzz run` first")
    return corpora.find_entries(entries or [options.DEFAULT_CORPUS])


def loaded(path: Path) -> corpora.Entry:
    """The one entry that a verb is about. Raises `BadInputError`."""
    try:
        return corpora.load(path)
    except corpora.CorpusError as error:
        raise BadInputError(str(error)) from error


def changed(change: Callable[[], object], out: Console, counts: dict[str, int]) -> bool:
    """Whether a change of the corpus could be made; a line, and a count of `ERROR`, if not."""
    try:
        change()
    except corpora.CorpusError as error:
        counts["ERROR"] += 1
        out.print(f"ERROR    {error}", style="red")
        return False
    return True


def readable(paths: Sequence[Path], out: Console, counts: dict[str, int]) -> Iterator[tuple[Path, corpora.Entry]]:
    """Every entry that can be read; a line, and a count of `ERROR`, for each file that cannot."""
    for path in paths:
        try:
            entry = corpora.load(path)
        except corpora.CorpusError as error:
            counts["ERROR"] += 1
            out.print(f"ERROR    {error}", style="red")
            continue
        yield path, entry


@dataclass(frozen=True)
class Own:
    """The user's own function, on which every entry is judged, where --impl names one."""

    impl: str | None
    function: Implementation | None

    @classmethod
    def of(cls, impl: str | None, device: str) -> Own:
        """Raises `BadInputError`."""
        return cls(impl, None if impl is None else options.own_function(impl, device))

    def subject_of(self, entry: corpora.Entry) -> Subject:
        """The implementation that an entry is judged on. Raises `BadInputError`."""
        subject = subject_of(entry, self.function, f"user:{self.impl}")
        if self.impl is not None and callable(self.function):
            options.fits(subject.target, self.impl, self.function)
        return subject

    def elsewhere(self, entry: corpora.Entry) -> str | None:
        """The user's function that an entry was found on, where it is judged on the shipped implementation instead."""
        is_users = self.impl is None and entry.implementation.startswith("user:")
        return entry.implementation.removeprefix("user:") if is_users else None


class Asking:
    """Judges cases of one entry. What ends a verb while it does names the entry."""

    def __init__(self, pools: Pools, subject: Subject, path: Path) -> None:
        self._pool = pools.of(subject)
        self._path = path

    def __call__(self, case: Case, only: str | None = None, seconds: float | None = None) -> Outcome:
        try:
            return self._pool.judge(case, only, seconds)
        except (WorkerError, JudgeFailed) as error:
            raise judging_failed(error, f"{self._path}: capfuzz failed") from error
