"""Two runs into one corpus lose nothing; a full disk and a read-only corpus cost the entry, never the finding.

`CAPFUZZ_STRESS_SECONDS` says for how long two runs share a corpus; a few seconds by default.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capfuzz import corpus as corpora

Run = Callable[..., Any]

SECONDS = float(os.environ.get("CAPFUZZ_STRESS_SECONDS", "8"))
LINES = 40
ENTRY = re.compile(r"^  entry +(\S+\.json)( \(already in the corpus\))?$", re.MULTILINE)
# A line, and so a fault, for each of many batch sizes: both runs find most of them, and race for their names.
MANY = "from capfuzz.targets.fold_indptr import fold_indptr\n\n\ndef many(indptr, fold_factor):\n" + "".join(
    f"    if indptr.numel() % {LINES} == {rest}:\n        indptr[0] = {rest}\n" for rest in range(LINES)
)
MANY += "    return fold_indptr(indptr, fold_factor)\n"


def started(work: Path, seed: int, seconds: float) -> subprocess.Popen[str]:
    what = ["run", "fold_indptr", "--impl", "many:many", "--seed", str(seed), "--max-time", str(seconds), "--corpus", "shared"]
    command = [sys.executable, "-m", "capfuzz", *what]
    return subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_runs_lose_and_corrupt_nothing(work: Path) -> None:
    (work / "many.py").write_text(MANY)
    shared = work / "shared"
    runs = [started(work, seed, SECONDS) for seed in (1, 2)]
    begun, looked = time.monotonic(), 0
    try:
        while any(run.poll() is None for run in runs) and time.monotonic() - begun < SECONDS + 90:
            for path in corpora.find_entries([shared] if shared.is_dir() else []):
                assert corpora.load(path).target == "fold_indptr", "a file that has its name is whole"
                looked += 1
            time.sleep(0.05)
        outs = [run.communicate(timeout=30) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [1, 1], outs
    assert all(err == "" and "not saved" not in out for out, err in outs)

    printed = [dict(ENTRY.findall(out)) for out, _ in outs]
    assert all(len(found) >= 2 for found in printed), "both had something to write"
    on_disk = {str(path.relative_to(work)) for path in shared.rglob("*") if path.is_file()}
    assert on_disk == printed[0].keys() | printed[1].keys(), "what was printed is there, and nothing else is"
    for path in on_disk:
        entry = corpora.load(work / path)
        assert corpora.misnamed(work / path, entry) is None
    both = printed[0].keys() & printed[1].keys()
    assert both, "they found the same faults"
    for path in both:
        assert sorted(bool(found[path]) for found in printed) == [False, True], f"{path} is new to exactly one of them"
    assert looked


# -- disks that take nothing -------------------------------------------------------------------------------------------

FEW = ("--seed", "1", "--max-examples", "40")


def loses_only_the_entry(done: Any, corpus: Path | str, reason: str) -> None:
    """One clear line beside the finding, which is printed whole; the campaign goes on."""
    assert (done.code, done.err) == (1, "")
    assert done.out.count("FINDING  capture_error:host_copy") == 1 and "out[0] = 0" in done.out
    said = [line for line in done.out.splitlines() if line.startswith("  not saved")]
    assert len(said) == 1 and said[0].endswith(f": cannot be written: {reason}"), said
    assert str(corpus) in said[0]
    assert "1 finding: 40 cases" in done.out
    assert "  entry" not in done.out


@pytest.fixture
def disk(work: Path) -> Iterator[Callable[[str], Path]]:
    """`disk(options)`: a small file system of its own, where this process may have one."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        place = work / "disk"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_full(process: Run, disk: Callable[[str], Path]) -> None:
    place = disk("size=64k")
    with pytest.raises(OSError, match="No space left"), (place / "filler").open("wb") as filler:
        while True:
            filler.write(bytes(4096))
            filler.flush()
    corpus = place / "corpus"
    done = process("run", "fold_indptr", "--variant", "scalar_store", *FEW, "--corpus", corpus)
    loses_only_the_entry(done, corpus, "No space left on device")
    assert not [path for path in corpus.rglob("*") if path.is_file()], "no half file"


def test_a_disk_that_fills_while_the_entry_is_written(process: Run, work: Path) -> None:
    """The error made certain where nothing can be mounted: what is written does not reach the disk."""
    (work / "planted").mkdir()
    (work / "planted" / "sitecustomize.py").write_text(
        "import errno, os\n\n\ndef full(_):\n    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n\n\nos.fsync = full\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(work / "planted")}
    done = process("run", "fold_indptr", "--variant", "scalar_store", *FEW, env=environment)
    loses_only_the_entry(done, "corpus/fold_indptr", "No space left on device")
    assert not [path for path in (work / "corpus").rglob("*") if path.is_file()]


def test_a_corpus_on_a_read_only_disk(process: Run, disk: Callable[[str], Path]) -> None:
    corpus = disk("ro") / "corpus"
    done = process("run", "fold_indptr", "--variant", "scalar_store", *FEW, "--corpus", corpus)
    loses_only_the_entry(done, corpus, "Read-only file system")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_corpus_where_nobody_can_make_a_directory(process: Run) -> None:
    """No permission binds root; this binds everybody."""
    done = process("run", "fold_indptr", "--variant", "scalar_store", *FEW, "--corpus", "/proc/corpus")
    loses_only_the_entry(done, "/proc/corpus", "No such file or directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_corpus_that_may_not_be_written(process: Run, work: Path) -> None:
    (work / "corpus").mkdir(mode=0o500)
    done = process("run", "fold_indptr", "--variant", "scalar_store", *FEW)
    loses_only_the_entry(done, "corpus", "Permission denied")
