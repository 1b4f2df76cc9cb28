"""`capfuzz run`, `replay` and pytest with implementations that end, block or exhaust their process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capfuzz import corpus as corpora
from capfuzz.campaign import campaign as campaign_module
from capfuzz.cli.pools import MOST_OPEN
from capfuzz.findings import reduce as reduce_module
from capfuzz.targets import Case, get_target
from capfuzz.workers import WorkerPool
from capfuzz.workers import pool as pool_module

pytest_plugins = ["pytester"]

Run = Callable[..., Any]

# Two faults: one takes the process with it, the other is a wrong answer.
TWO_FAULTS = """\
import ctypes, os, pathlib, signal, sys, threading, time

from capfuzz.targets.fold_indptr import fold_indptr

kept = []


def bad(indptr, fold_factor):
    if fold_factor > 4:
{body}
    if indptr.numel() >= 3:
        return fold_indptr(indptr, fold_factor) + 1
    return fold_indptr(indptr, fold_factor)
"""

SMALLEST = Case({"fold_factor": 5, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [], "start": 0}])
WRONG = Case({"fold_factor": 1, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [0, 0], "start": 0}])

# statements, label, message, blamed lines (None: none can be)
Fault = tuple[str, str, str, set[str] | None]
FAULTS: dict[str, Fault] = {
    "os._exit": ("os._exit(7)", "crash", "the process ended: exit status 7", None),
    "segfault": ("ctypes.string_at(0)", "crash", "the process ended: killed by SIGSEGV", {"ctypes.string_at(0)"}),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "the process ended: killed by SIGKILL", None),
    "sleeps": ("while True:\n    time.sleep(0.01)", "hang", "no end after 0.5 s", {"time.sleep(0.01)"}),
    "is busy": ("while True:\n    pass", "hang", "no end after 0.5 s", {"while True:", "pass"}),
    "takes memory": (
        "for _ in range(30):\n    kept.append(bytearray(10 << 20))\n    time.sleep(0.01)\ntime.sleep(60)",
        "crash:out_of_memory",
        "the process took more than 64 MiB",
        {"kept.append(bytearray(10 << 20))", "time.sleep(0.01)"},
    ),
}
HARMLESS = {
    "closes its output": "os.closerange(1, 3)",
    "closes its streams": "sys.stdout.close(); sys.stderr.close()",
    "prints a lot": "print('x' * 100_000); os.write(2, b'y' * 100_000)",
    "starts threads": "threading.Thread(target=time.sleep, args=(60,)).start()",
}


def write(work: Path, statements: str) -> None:
    (work / "mine.py").write_text(TWO_FAULTS.format(body=textwrap.indent(statements, " " * 8)))


def stable(out: str) -> str:
    """The output without what differs from run to run: times, and how many workers there are."""
    return re.sub(r"\d+\.\d s \(\d+/s\)", "TIME", out.replace(", 3 workers", ""))


def entries(work: Path, corpus: str = "corpus") -> dict[str, corpora.Entry]:
    """The entries of a corpus by label."""
    return {entry.label: entry for entry in map(corpora.load, (work / corpus).rglob("*.json"))}


@pytest.fixture(autouse=True)
def nothing_is_left(processes: Any) -> Iterator[None]:
    """No test leaves a process of its own behind, not even a zombie."""
    before = processes.below(os.getpid())
    yield
    assert not processes.left(processes.below(os.getpid()) - before)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that hangs is given up sooner, and memory is short sooner."""
    monkeypatch.setattr(campaign_module, "HANG_SECONDS", 0.1)
    monkeypatch.setattr(reduce_module, "HANG_SECONDS", 0.1)
    monkeypatch.setattr(pool_module, "share", lambda workers: 64 << 20)


OPTIONS = ("--impl", "mine:bad", "--seed", "3", "--max-examples", "60")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", FAULTS)
def test_both_faults_are_found_minimised_saved_and_replayed(
    capfuzz: Run, work: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    statements, label, message, lines = FAULTS[name]
    monkeypatch.chdir(work)
    write(work, statements)
    time_limit = ("--case-timeout", "0.5" if label == "hang" else "20")
    result = capfuzz("run", "fold_indptr", *OPTIONS, *time_limit)
    assert (result.code, result.err) == (1, "")
    assert result.out.count("FINDING") == 2 and "flaky" not in result.out
    assert re.search(r"^2 findings: 60 cases in ", result.out, re.MULTILINE), "the run goes on"
    found = entries(work)
    assert set(found) == {label, "reference_mismatch"}
    lost, wrong = found[label], found["reference_mismatch"]
    assert (lost.case, lost.message) == (SMALLEST, message)
    assert wrong.case == WRONG
    if lines is None:
        assert lost.blame is None
    else:
        assert lost.blame is not None
        assert (lost.blame.file, lost.blame.function) == ("mine.py", "bad")
        assert lost.blame.text in lines
    assert lost.axes["fold_factor"] == "only 5, 8, 16 (not 1, 2, 3, 4)"
    assert lost.axes["batch"].startswith("any")

    replayed = capfuzz("replay", "--impl", "mine:bad", *time_limit)
    assert (replayed.code, replayed.err) == (1, "")
    assert sorted(line.split()[2] for line in replayed.out.splitlines() if line.startswith("FAILED")) == sorted(found)
    assert replayed.out.splitlines()[-1] == "2 entries: 2 FAILED"

    monkeypatch.setattr("capfuzz.pytest_plugin.CASE_SECONDS", float(time_limit[1]))
    arguments = ("-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={work}", work / "corpus")
    shown = pytester.inline_run("--capfuzz-impl", "fold_indptr=mine:bad", *map(str, arguments))
    shown.assertoutcome(failed=2)
    pytester.inline_run(*map(str, arguments)).assertoutcome(passed=2)  # what is shipped has no such fault


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_fault_hides_none(capfuzz: Run, work: Path, name: str) -> None:
    write(work, HARMLESS[name])
    result = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--seed", "3", "--max-examples", "60")
    assert (result.code, result.err) == (1, "")
    assert re.search(r"^1 finding: 60 cases in ", result.out, re.MULTILINE)
    assert entries(work)["reference_mismatch"].case == WRONG
    assert "xxx" not in result.out and "yyy" not in result.out


# -- workers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accumulating_workspace", "cached_tensor", "int32_wrap", None])
def test_three_workers_find_what_one_finds(capfuzz: Run, work: Path, name: str | None) -> None:
    """The same cases in the same order, the same findings, the same bytes."""
    write(work, "os._exit(7)")
    what = ("--impl", "mine:bad") if name is None else ("--variant", name)
    outs = []
    for workers in (1, 3):
        arguments = ("--seed", "9", "--max-examples", "80", "--workers", workers, "--corpus", f"corpus-{workers}")
        result = capfuzz("run", "fold_indptr", *what, *arguments)
        assert result.code == 1
        assert (", 3 workers" in result.out.splitlines()[0]) == (workers == 3)
        outs.append(stable(result.out.replace(f"corpus-{workers}", "corpus")))
    assert outs[0] == outs[1]
    one, three = (sorted((work / f"corpus-{workers}").rglob("*.json")) for workers in (1, 3))
    assert [path.name for path in one] == [path.name for path in three]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in three]
    assert len(one) == (2 if name is None else 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_limits_count_cases_in_their_order(capfuzz: Run, work: Path, workers: int) -> None:
    """What is at work behind the last case that counts does not count."""
    write(work, "os._exit(7)")
    outs = [
        capfuzz("run", "fold_indptr", *OPTIONS, "--no-save", "--workers", count, "--max-findings", "2").out
        for count in (1, workers)
    ]
    assert stable(outs[0]) == stable(outs[1])
    summary = re.search(r"^2 findings: (\d+) cases", outs[0], re.MULTILINE)
    assert summary is not None and int(summary.group(1)) < 60


def test_a_fault_at_the_end_of_the_time_is_not_lost(capfuzz: Run, work: Path) -> None:
    """The only case that was begun takes longer than there is time."""
    write(work, "time.sleep(0.5); os._exit(7)")
    (work / "mine.py").write_text((work / "mine.py").read_text().replace("fold_factor > 4", "True"))
    begun = time.monotonic()
    result = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--max-time", "0.2", "--seed", "1")
    assert time.monotonic() - begun < 5
    assert result.code == 1
    assert "FINDING  crash" in result.out and "note       not fully minimised" in result.out


@pytest.mark.usefixtures("quick")
def test_a_slow_case_is_no_hang_because_another_one_hangs(capfuzz: Run, work: Path) -> None:
    """Once a case has hung, the others are given less time; one that needs more gets it before it is called a fault."""
    (work / "mine.py").write_text(
        "import time\n\nfrom capfuzz.targets.fold_indptr import fold_indptr\n\n\n"
        "def waits():\n    time.sleep(60)\n\n\n"
        "def slow():\n    time.sleep(0.1)\n\n\n"
        "def bad(indptr, fold_factor):\n"
        "    if fold_factor > 4:\n        waits()\n"
        "    if fold_factor == 3:\n        slow()\n"
        "    return fold_indptr(indptr, fold_factor)\n"
    )
    arguments = ("--impl", "mine:bad", "--seed", "3", "--max-examples", "25", "--case-timeout", "1.0")
    result = capfuzz("run", "fold_indptr", *arguments)
    assert result.code == 1
    assert re.search(r"^1 finding: 25 cases in ", result.out, re.MULTILINE)
    assert "FINDING  hang" in result.out and "in waits" in result.out


def test_case_timeout_is_a_time(capfuzz: Run) -> None:
    for wrong in ("0", "-1", "nan", "inf", "soon"):
        result = capfuzz("run", "fold_indptr", "--case-timeout", wrong)
        assert (result.code, result.out) == (2, "") and "--case-timeout" in result.err
    assert capfuzz("run", "fold_indptr", "--workers", "0").code == 2


# -- ends --------------------------------------------------------------------------------------------------------------


def test_the_zygotes_death_is_status_3_in_one_line(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before is reported and saved."""
    write(work, "pathlib.Path('here').touch(); time.sleep(60)")
    real = WorkerPool._look

    def look(pool: WorkerPool, wait: bool = True) -> None:
        if Path("here").exists():
            Path("here").unlink()
            os.kill(pool._zygote._pid, signal.SIGKILL)  # type: ignore[union-attr]
        real(pool, wait)

    monkeypatch.setattr(WorkerPool, "_look", look)
    arguments = ("--impl", "mine:bad", "--seed", "5", "--max-examples", "60", "--case-timeout", "30")
    result = capfuzz("run", "fold_indptr", *arguments)
    assert result.code == 3
    assert result.err == "Error: the process that starts workers has ended: killed by SIGKILL\n"
    assert re.search(r"^(1 finding|no findings): \d+ cases? in .*, interrupted$", result.out, re.MULTILINE)
    assert re.search("FINDING  (crash|hang)", result.out) is None


def test_workers_that_do_not_start_again_are_status_3(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work, "os._exit(7)")
    started = WorkerPool._started
    starts = 0

    def start(pool: WorkerPool, number: int) -> Any:
        nonlocal starts
        starts += 1
        if starts > 1:
            pool._subject = replace(pool._subject, label="user:nosuch:f")
        return started(pool, number)

    monkeypatch.setattr(WorkerPool, "_started", start)
    result = capfuzz("run", "fold_indptr", *OPTIONS)
    assert result.code == 3
    assert result.err.count("\n") == 1 and "no module named 'nosuch'" in result.err
    assert "interrupted" in result.out


def test_output_that_nobody_reads_leaves_no_worker(work: Path, processes: Any) -> None:
    """`capfuzz run ... | head -1`"""
    write(work, "os._exit(7)")
    command = [sys.executable, "-m", "capfuzz", "run", "fold_indptr", "--impl", "mine:bad", "--workers", "2"]
    process = subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith("fold_indptr (user:mine:bad) on sim")
    family = processes.below(process.pid)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 130
    assert len(family) == 3
    assert not processes.left(family)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_killed_leaves_no_worker(work: Path, processes: Any, end: signal.Signals) -> None:
    write(work, "pathlib.Path('here').touch()\n" + "while True:\n    pass")
    command = [sys.executable, "-m", "capfuzz", "run", "fold_indptr", "--impl", "mine:bad", "--workers", "2"]
    process = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL, start_new_session=True)
    while not (work / "here").exists():
        assert process.poll() is None
        time.sleep(0.01)
    family = processes.below(process.pid)
    assert len(family) == 3
    os.killpg(process.pid, end)
    assert process.wait(timeout=30) == -end
    assert not processes.left(family)


def test_replay_of_many_implementations_opens_few_pools_at_once(
    capfuzz: Run, save: Callable[..., Path], processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = get_target("fold_indptr")
    for name in target.variants:
        for number in (1, 2):
            save(f"{number}-{name}", implementation=f"variant:{name}")
    before, most = len(processes.below(os.getpid())), 0
    real = WorkerPool.judge

    def judge(pool: WorkerPool, *arguments: Any) -> Any:
        nonlocal most
        most = max(most, len(processes.below(os.getpid())) - before)
        return real(pool, *arguments)

    monkeypatch.setattr(WorkerPool, "judge", judge)
    result = capfuzz("replay", "-q")
    assert result.code == 1
    assert len(target.variants) > MOST_OPEN
    assert result.out.splitlines()[-1].startswith(f"{2 * len(target.variants)} entries: ")
    assert most <= 2 * MOST_OPEN
