"""Writing the corpus: whole files or none, the first of two equal findings wins, nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from capfuzz import corpus as corpora
from capfuzz.corpus.entry import Found
from capfuzz.corpus.store import encode, entry_path
from capfuzz.differential import Verdict
from capfuzz.findings import SourceLine
from capfuzz.targets import Case

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def entry(message: str = "one") -> corpora.Entry:
    return corpora.Entry(
        schema=corpora.SCHEMA_VERSION,
        target="fold_indptr",
        implementation="variant:scalar_store",
        expect=corpora.Expect.FAULT,
        verdict=Verdict.CAPTURE_ERROR,
        cause="host_copy",
        message=message,
        blame=SourceLine("a.py", 1, "f", "out[0] = 0", "copy_"),
        case=Case({"fold_factor": 1, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [], "start": 0}]),
        axes={},
        found=Found("0.1.0", "2.13.0", "sim", "hypothesis", 1),
    )


def files(corpus: Path) -> list[str]:
    return sorted(str(path.relative_to(corpus)) for path in corpus.rglob("*") if path.is_file())


def in_child(body: Callable[[], None]) -> int:
    """Starts `body` in a forked process, which is much faster than one that imports torch again."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except BaseException:
        traceback.print_exc()
        os._exit(99)
    os._exit(0)


def status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- what is written ---------------------------------------------------------------------------------------------------


def test_save(tmp_path: Path) -> None:
    corpus = tmp_path / "deep" / "corpus"
    path, is_new = corpora.save(corpus, "capture_error-host_copy-01234567", entry())
    assert is_new
    assert path == corpus / "fold_indptr" / "capture_error-host_copy-01234567.json"
    assert path == entry_path(corpus, "fold_indptr", "capture_error-host_copy-01234567")
    assert corpora.load(path) == entry()
    assert files(corpus) == ["fold_indptr/capture_error-host_copy-01234567.json"], "no temporary file is left"
    assert path.read_bytes() == encode(entry()) and path.read_bytes().endswith(b"}\n")


def test_others_can_read_it(tmp_path: Path) -> None:
    """mkstemp's own mode would hide it from everybody else."""
    path, _ = corpora.save(tmp_path, "x", entry())
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_known_fault_keeps_its_file(tmp_path: Path) -> None:
    path, _ = corpora.save(tmp_path, "x", entry("first"))
    before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
    assert corpora.save(tmp_path, "x", entry("second")) == (path, False)
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert len(files(tmp_path)) == 1


def test_file_that_appears_in_between_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race made certain: another process writes after this one has looked and before it links."""
    real_fsync = os.fsync
    path = entry_path(tmp_path, "fold_indptr", "x")

    def another_writes(descriptor: int) -> None:
        real_fsync(descriptor)
        path.write_bytes(encode(entry("the other's")))

    monkeypatch.setattr(os, "fsync", another_writes)
    assert corpora.save(tmp_path, "x", entry("mine")) == (path, False)
    assert corpora.load(path).message == "the other's"
    assert files(tmp_path) == ["fold_indptr/x.json"]


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> NoReturn:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path, is_new = corpora.save(tmp_path, "x", entry())
    assert is_new and corpora.load(path) == entry()
    assert files(tmp_path) == ["fold_indptr/x.json"]
    assert corpora.save(tmp_path, "x", entry("second")) == (path, False)
    assert corpora.load(path) == entry()


# -- crashes -----------------------------------------------------------------------------------------------------------


@needs_fork
@pytest.mark.parametrize("at", ["fsync", "link"])
def test_crash_before_the_entry_has_its_name_leaves_no_entry(tmp_path: Path, at: str) -> None:
    """The process is gone at once, as with `kill -9`: no cleaning up. What it leaves is not taken for an entry."""

    def crash() -> None:
        setattr(os, at, lambda *_: os._exit(7))
        corpora.save(tmp_path, "x", entry("never complete"))

    assert status(in_child(crash)) == 7
    left = files(tmp_path)
    assert len(left) == 1 and left[0].endswith(".tmp"), "the crash came where it was planted"
    assert corpora.find_entries([tmp_path]) == []

    path, is_new = corpora.save(tmp_path, "x", entry("after the crash"))
    assert is_new, "what a crash left does not block the fault"
    assert corpora.load(path).message == "after the crash"
    assert corpora.find_entries([tmp_path]) == [path]


@needs_fork
@pytest.mark.parametrize("at", ["fsync", "link"])
def test_crash_leaves_the_old_file(tmp_path: Path, at: str) -> None:
    """The same fault is being written by a process that has not seen the file: the file stays what it was."""
    path, _ = corpora.save(tmp_path, "x", entry("old"))

    def crash() -> None:
        setattr(os, at, lambda *_: os._exit(7))
        unseen = iter([False])
        real_exists = Path.exists
        Path.exists = lambda self, **kw: next(unseen, real_exists(self, **kw))  # type: ignore[method-assign]
        corpora.save(tmp_path, "x", entry("new"))

    assert status(in_child(crash)) == 7
    assert corpora.load(path).message == "old"
    assert corpora.find_entries([tmp_path]) == [path]


def test_overwrite(tmp_path: Path) -> None:
    path, _ = corpora.save(tmp_path, "x", entry("old"))
    (tmp_path / "link.json").symlink_to(path)
    corpora.overwrite(tmp_path / "link.json", entry("new"))
    assert corpora.load(path).message == "new" and (tmp_path / "link.json").is_symlink()
    assert files(tmp_path) == ["fold_indptr/x.json", "link.json"]


@needs_fork
@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_crash_while_overwriting_leaves_the_old_entry(tmp_path: Path, at: str) -> None:
    path, _ = corpora.save(tmp_path, "x", entry("old"))

    def crash() -> None:
        setattr(os, at, lambda *_: os._exit(7))
        corpora.overwrite(path, entry("new"))

    assert status(in_child(crash)) == 7
    assert corpora.load(path).message == "old"
    assert corpora.find_entries([tmp_path]) == [path]


def test_remove(tmp_path: Path) -> None:
    path, _ = corpora.save(tmp_path, "x", entry())
    corpora.remove(path)
    assert files(tmp_path) == []
    with pytest.raises(corpora.CorpusError, match=r"x\.json: cannot be removed: No such file or directory"):
        corpora.remove(path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(error):
        corpora.save(tmp_path, "x", entry())
    assert files(tmp_path) == []


# -- errors ------------------------------------------------------------------------------------------------------------


class FullFile:
    """A file on a full disk: it can be opened, and takes nothing."""

    def __init__(self, descriptor: int, *_: object) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> FullFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, _: bytes) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "patches",
    [
        [(Path, "mkdir", full)],
        [(tempfile, "mkstemp", full)],
        [(os, "fdopen", FullFile)],
        [(os, "fsync", full)],
        [(os, "link", full), (os, "replace", full)],
    ],
    ids=["mkdir", "create", "write", "flush", "rename"],
)
def test_full_disk_is_a_clear_error_and_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patches: list[tuple[Any, str, Any]]
) -> None:
    with monkeypatch.context() as planted:
        for owner, name, replacement in patches:
            planted.setattr(owner, name, replacement)
        with pytest.raises(corpora.CorpusError) as caught:
            corpora.save(tmp_path, "x", entry())
    path = entry_path(tmp_path, "fold_indptr", "x")
    assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert files(tmp_path) == []
    assert corpora.save(tmp_path, "x", entry()) == (path, True), "room again: the fault is saved"


def test_error_while_another_entry_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, _ = corpora.save(tmp_path, "other", entry())
    monkeypatch.setattr(os, "fdopen", FullFile)
    with pytest.raises(corpora.CorpusError):
        corpora.save(tmp_path, "x", entry())
    assert corpora.find_entries([tmp_path]) == [other]
    assert files(tmp_path) == ["fold_indptr/other.json"]


def test_corpus_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(corpora.CorpusError, match=r"file/corpus/fold_indptr/x\.json: cannot be written: Not a directory"):
        corpora.save(tmp_path / "file" / "corpus", "x", entry())


# -- many at once ------------------------------------------------------------------------------------------------------

WRITERS = 8
FAULTS = 25


def write_all(corpus: Path, writer: int) -> list[str]:
    """Saves faults that every writer finds and faults of its own; the names of those that were new to the corpus."""
    new = []
    for number in range(FAULTS):
        for name in (f"shared-{number}", f"own-{writer}-{number}"):
            path, is_new = corpora.save(corpus, name, entry(f"writer {writer}"))
            assert corpora.load(path).target == "fold_indptr", "whoever wrote it, it is whole"
            if is_new:
                new.append(name)
    return new


def check_all(corpus: Path, new: list[list[str]]) -> None:
    wanted = [f"shared-{n}" for n in range(FAULTS)] + [f"own-{w}-{n}" for w in range(WRITERS) for n in range(FAULTS)]
    assert files(corpus) == sorted(f"fold_indptr/{name}.json" for name in wanted), "nothing is lost and nothing is left"
    assert sorted(name for names in new for name in names) == sorted(wanted), "each fault is new to exactly one writer"
    for path in corpora.find_entries([corpus]):
        message = corpora.load(path).message
        assert path.stem in new[int(message.removeprefix("writer "))], "the one that was told so wrote it"


@needs_fork
def test_processes_write_at_once(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    reader, writer = os.pipe()

    def body(number: int) -> Callable[[], None]:
        def run() -> None:
            os.close(writer)
            os.read(reader, 1)  # all begin when the parent closes its end
            (tmp_path / f"new-{number}.json").write_text(json.dumps(write_all(corpus, number)))

        return run

    children = [in_child(body(number)) for number in range(WRITERS)]
    os.close(writer)
    os.close(reader)
    assert [status(pid) for pid in children] == [0] * WRITERS
    check_all(corpus, [json.loads((tmp_path / f"new-{number}.json").read_text()) for number in range(WRITERS)])


def test_threads_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new: list[list[str]] = [[] for _ in range(WRITERS)]
    barrier = threading.Barrier(WRITERS)

    def run(number: int) -> None:
        barrier.wait()
        new[number] = write_all(tmp_path, number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    check_all(tmp_path, new)


# -- finding entries ---------------------------------------------------------------------------------------------------


def test_find_entries(tmp_path: Path) -> None:
    one, _ = corpora.save(tmp_path, "b", entry())
    two, _ = corpora.save(tmp_path, "a", entry())
    (one.parent / ".hidden.json").write_text("{}")
    (one.parent / "notes.md").write_text("")
    (one.parent / ".abc.tmp").write_text("")
    assert corpora.find_entries([tmp_path]) == [two, one]
    assert corpora.find_entries([one, tmp_path, one]) == [one, two], "as given, each once"
    assert corpora.find_entries([]) == []
    assert corpora.find_entries([tmp_path / "given.txt"]) == [tmp_path / "given.txt"], "a file stands for itself"
