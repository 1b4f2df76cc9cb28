"""The pytest plugin: every corpus entry is a test, and its id is its path.

Collected are `corpus/<target>/*.json` below whatever pytest is given, where `<target>` is a registered target or the file says
that it is an entry. The plugin is loaded in every pytest run and any project may have a directory called corpus, so whether a
file is an entry is seen without importing a target: heavy imports wait until there is an entry to run.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from capfuzz.corpus import Entry
    from capfuzz.differential import Implementation, Outcome
    from capfuzz.targets import Case, Subject
    from capfuzz.workers import WorkerPool

_TARGETS = Path(__file__).parent / "targets"
_KEYS = (b'"schema"', b'"target"')  # an entry begins with them
_MARK = b'"capfuzz"'  # and says further down which capfuzz it is from
_HEAD = 1 << 12
_MOST = 4 << 20
CASE_SECONDS = 10.0
_POOLS: pytest.StashKey[dict[tuple[str, str], WorkerPool]] = pytest.StashKey()


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


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_POOLS] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    for pool in config.stash.get(_POOLS, {}).values():
        pool.__exit__()


class EntryFile(pytest.File):
    """One entry file."""

    def collect(self) -> Iterable[EntryItem]:
        yield EntryItem.from_parent(self, name=self.path.name, nodeid=self.nodeid)  # the file is the test


class EntryFailed(Exception):
    """The entry does not show what it must."""


def _imported(target: str, spec: str) -> Implementation:
    """The user's own function. Its module may make tensors on the device as it is imported."""
    from capfuzz.devices.sim import sim
    from capfuzz.targets import get_target
    from capfuzz.targets.subjects import ImplementationError, user

    try:
        with sim():
            return user(get_target(target), spec).function
    except ImplementationError as error:
        raise EntryFailed(str(error)) from error


class EntryItem(pytest.Item):
    """One entry: it must show what its `expect` says."""

    def runtest(self) -> None:
        from capfuzz import corpus
        from capfuzz.cli.text import entry_text
        from capfuzz.corpus.replay import subject_of

        try:
            entry = corpus.load(self.path)
        except corpus.CorpusError as error:
            raise EntryFailed(str(error)) from error
        spec = self._own(entry.target) if entry.expect is corpus.Expect.EQUIVALENT else None
        own = None if spec is None else _imported(entry.target, spec)
        subject = subject_of(entry, own, f"user:{spec}")
        result = corpus.replay(entry, subject, partial(self._judged, entry, subject))
        detail = entry_text(entry, result.subject.target, result.outcome)
        if entry.expect is corpus.Expect.OPEN:
            if result.status is corpus.Status.FIXED:
                raise EntryFailed(f'the open fault no longer shows: set "expect" to "equivalent"\n{detail}')
            pytest.xfail(f"open: {result.outcome.label}" + (f", {entry.issue}" if entry.issue else ""))
        if not result.as_expected:
            wanted = entry.label if entry.expect is corpus.Expect.FAULT else "equivalent"
            raise EntryFailed(f"{result.subject.label} must be {wanted}, is {result.outcome.label}\n{detail}")

    def _judged(self, entry: Entry, subject: Subject, case: Case) -> Outcome:
        """In this process, unless that could take pytest with it."""
        from capfuzz.devices import open_device
        from capfuzz.differential import Verdict
        from capfuzz.workers import InProcess, WorkerError, WorkerPool

        if entry.verdict not in (Verdict.CRASH, Verdict.HANG) and not subject.label.startswith("user:"):
            with open_device("sim") as device:
                return InProcess(device, subject).judge(case)
        pools = self.config.stash[_POOLS]
        key = subject.target.name, subject.label
        try:
            if key not in pools:
                pools[key] = WorkerPool(subject, "sim", case_seconds=CASE_SECONDS).__enter__()
            return pools[key].judge(case)
        except WorkerError as error:
            raise EntryFailed(str(error)) from error

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
