"""The pytest plugin: every corpus entry is a test, and its id is its path.

Collected are `corpus/<target>/*.json` below whatever pytest is given, where `<target>` is a registered target or the file says
that it is an entry. The plugin is loaded in every pytest run and any project may have a directory called corpus, so whether a
file is an entry is seen without importing a target: heavy imports wait until there is an entry to run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_TARGETS = Path(__file__).parent / "targets"
_KEYS = (b'"schema"', b'"target"')  # an entry begins with them
_MARK = b'"capfuzz"'  # and says further down which capfuzz it is from
_HEAD = 1 << 12
_MOST = 4 << 20


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("capfuzz", "replay of capfuzz corpus entries")
    group.addoption(
        "--capfuzz-impl",
        action="append",
        default=[],
        metavar="TARGET=MODULE:FUNCTION",
        help="run the entries of TARGET that expect equivalence on your own function",
    )
    parser.addini("capfuzz_impl", "TARGET=MODULE:FUNCTION, one a line: see --capfuzz-impl", type="linelist", default=[])


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != ".json" or file_path.parent.parent.name != "corpus" or file_path.name.startswith("."):
        return None
    if not _is_entry(file_path):
        return None
    collector: pytest.Collector = EntryFile.from_parent(parent, path=file_path)
    return collector


def _is_entry(path: Path) -> bool:
    try:
        if _is_target(path.parent.name):
            return True
        with path.open("rb") as file:
            head = file.read(_HEAD)
            return all(key in head for key in _KEYS) and _MARK in head + file.read(_MOST)
    except OSError:
        return False


def _is_target(name: str) -> bool:
    """Whether a module of `capfuzz.targets` registers a target of that name, seen in its source."""
    module = _TARGETS / f"{name}.py"
    return module.is_file() and b"\nTARGET = " in module.read_bytes()


class EntryFile(pytest.File):
    """One entry file."""

    def collect(self) -> Iterable[EntryItem]:
        yield EntryItem.from_parent(self, name=self.path.name, nodeid=self.nodeid)  # the file is the test


class EntryFailed(Exception):
    """The entry does not show what it must."""


class EntryItem(pytest.Item):
    """One entry: it must show what its `expect` says."""

    def runtest(self) -> None:
        from capfuzz import corpus
        from capfuzz.cli.text import entry_text
        from capfuzz.corpus.replay import subject_of
        from capfuzz.devices import open_device
        from capfuzz.differential import Verdict
        from capfuzz.workers import InProcess, WorkerPool

        try:
            entry = corpus.load(self.path)
        except corpus.CorpusError as error:
            raise EntryFailed(str(error)) from error
        own = None
        spec = self._own(entry.target) if entry.expect is corpus.Expect.EQUIVALENT else None
        if spec is not None:
            from capfuzz.targets import get_target
            from capfuzz.targets.subjects import ImplementationError, user

            try:
                own = user(get_target(entry.target), spec).function
            except ImplementationError as error:
                raise EntryFailed(str(error)) from error
        subject = subject_of(entry, own, f"user:{spec}")
        if entry.verdict in (Verdict.CRASH, Verdict.HANG):  # it would take pytest with it
            with WorkerPool(subject, "sim") as pool:
                result = corpus.replay(entry, subject, pool.judge)
        else:
            with open_device("sim") as device:
                result = corpus.replay(entry, subject, InProcess(device, subject).judge)
        detail = entry_text(entry, result.subject.target, result.outcome)
        if entry.expect is corpus.Expect.OPEN:
            if result.status is corpus.Status.FIXED:
                raise EntryFailed(f'the open fault no longer shows: set "expect" to "equivalent"\n{detail}')
            pytest.xfail(f"open: {result.outcome.label}" + (f", {entry.issue}" if entry.issue else ""))
        if not result.as_expected:
            wanted = entry.label if entry.expect is corpus.Expect.FAULT else "equivalent"
            raise EntryFailed(f"{result.subject.label} must be {wanted}, is {result.outcome.label}\n{detail}")

    def _own(self, target: str) -> str | None:
        given = [*self.config.getini("capfuzz_impl"), *self.config.getoption("--capfuzz-impl")]
        for item in reversed(given):
            name, separator, spec = item.partition("=")
            if not separator:
                raise pytest.UsageError(f"--capfuzz-impl {item!r}: write TARGET=MODULE:FUNCTION")
            if name == target:
                return str(spec)
        return None

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, EntryFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        # The header of a failure. Not the bare id: `-v` would take it for the name of a test, and turn its dots into colons.
        return self.path, None, f"entry {self.nodeid}"
