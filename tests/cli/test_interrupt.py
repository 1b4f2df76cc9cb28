"""Ctrl-C: what was found is printed and saved, the summary says that the run was interrupted, the exit status is 130."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis.strategies import just

from capfuzz import corpus as corpora
from capfuzz.targets import Case, targets

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[str]"]

PATIENCE = 30.0

# Waits in the capture with this number, until the test has interrupted capfuzz; 1 is the one that shows the fault, 2 and 3
# confirm it, later ones minimise it, and after those the axes are varied. One worker, so one count.
WAITING = """\
import pathlib
import time

import torch

from capfuzz.targets.fold_indptr import {name}

captures = 0


def bad(indptr, fold_factor):
    global captures
    if torch.cuda.is_current_stream_capturing():
        captures += 1
        if captures == {number}:
            pathlib.Path("here").touch()
            time.sleep(600)
    return {name}(indptr, fold_factor)
"""


def write_waiting(work: Path, number: int, name: str = "scalar_store") -> None:
    (work / "mine.py").write_text(WAITING.format(number=number, name=name))


@pytest.fixture
def interrupted(capfuzz: Run, work: Path) -> Run:
    """`interrupted(*arguments)`: Ctrl-C, as soon as the implementation waits; that it does is what keeps the two in step."""

    def interrupt_when_it_waits() -> None:
        deadline = time.monotonic() + PATIENCE
        while not (work / "here").exists():
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    def call(*arguments: object) -> Any:
        watcher = threading.Thread(target=interrupt_when_it_waits)
        watcher.start()
        try:
            begun = time.monotonic()
            result = capfuzz(*arguments, "--case-timeout", "60")
            assert time.monotonic() - begun < PATIENCE, "nobody waits for the case that was interrupted"
        finally:
            watcher.join()
        assert (work / "here").exists()
        return result

    return call


@pytest.fixture
def start(work: Path) -> Iterator[Start]:
    """A `capfuzz` process that is still running; none outlives the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, own_group: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capfuzz", *arguments]
        process = subprocess.Popen(
            command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=own_group
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_until(stream: IO[str], text: str) -> str:
    """What the process printed up to the line with `text`; a process that ends first fails the test."""
    seen = ""
    for line in stream:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"no line with {text!r} in:\n{seen}")


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE)


def test_sigint_after_a_finding(start: Start, mine: Path) -> None:
    process = start("run", "fold_indptr", "--impl", "mine:bad", "--max-time", "120")
    assert process.stdout is not None
    seen = read_until(process.stdout, "  again ")
    assert "FINDING  capture_error:host_copy" in seen
    rest, err = interrupt(process)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert re.search(r"^1 finding: \d+ cases? in .*, interrupted$", rest, re.MULTILINE)
    [path] = mine.parent.joinpath("corpus").rglob("*.json")
    assert corpora.load(path).label == "capture_error:host_copy"
    assert [other for other in path.parent.iterdir() if other != path] == []


def test_sigint_with_nothing_found(start: Start, work: Path) -> None:
    (work / "mine.py").write_text(
        "import pathlib\n\nfrom capfuzz.targets.fold_indptr import fold_indptr\n\n\n"
        "def good(indptr, fold_factor):\n"
        "    pathlib.Path('running').touch()\n"
        "    return fold_indptr(indptr, fold_factor)\n"
    )
    process = start("run", "fold_indptr", "--impl", "mine:good", "--max-time", "120")
    deadline = time.monotonic() + PATIENCE
    while not (work / "running").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    out, err = interrupt(process)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert re.search(r"^no findings: \d+ cases? in .*, interrupted$", out, re.MULTILINE)
    assert "combinations" not in out
    assert not (work / "corpus").exists()


@pytest.mark.parametrize("number", [2, 3, 4, 12])
def test_interrupt_while_a_fault_is_confirmed_or_minimised_keeps_it(interrupted: Run, work: Path, number: int) -> None:
    """The fault was seen once, so it may not be lost."""
    write_waiting(work, number)
    result = interrupted("run", "fold_indptr", "--impl", "mine:bad", "--seed", "4", "--max-examples", "1")
    assert result.code == 130
    assert "Traceback" not in result.err
    assert result.out.count("FINDING  capture_error:host_copy") == 1
    assert "note       not minimised: interrupted" in result.out
    assert re.search(r"^1 finding: .*, interrupted$", result.out, re.MULTILINE)
    [path] = (work / "corpus").rglob("*.json")
    assert corpora.load(path).label == "capture_error:host_copy"


@pytest.mark.parametrize(("number", "has_line"), [(2, False), (3, True)])
def test_interrupt_while_the_line_is_searched_keeps_the_divergence(
    interrupted: Run, work: Path, number: int, has_line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture 1 shows it; 2 runs it again with its values traced, for the line; 3 confirms it."""
    case = Case(
        {"fold_factor": 1, "dtype": "int32", "layout": "contiguous"},
        [{"lengths": [0], "start": 0}, {"lengths": [1], "start": 0}],
    )
    monkeypatch.setitem(targets(), "fold_indptr", replace(targets()["fold_indptr"], draw=lambda: just(case)))
    write_waiting(work, number, "cached_tensor")
    result = interrupted("run", "fold_indptr", "--impl", "mine:bad", "--seed", "4", "--max-examples", "30")
    assert result.code == 130
    assert result.out.count("FINDING  divergence:stale_host_value") == 1
    assert "note       not minimised: interrupted" in result.out
    [path] = (work / "corpus").rglob("*.json")
    entry = corpora.load(path)
    assert entry.label == "divergence:stale_host_value"
    assert (entry.blame is not None) == has_line
    assert entry.case == case


def test_interrupt_keeps_what_other_workers_have_found_behind_a_case_that_waits(interrupted: Run, work: Path) -> None:
    """Outcomes are taken in the order of the cases; a fault behind the one that waits is known, and was not taken yet."""
    (work / "mine.py").write_text(
        "import os, pathlib, time\n\nfrom capfuzz.targets.fold_indptr import scalar_store\n\n\n"
        "def bad(indptr, fold_factor):\n"
        "    try:\n"
        "        os.close(os.open('first', os.O_CREAT | os.O_EXCL))\n"
        "    except FileExistsError:\n"
        "        if pathlib.Path('first').stat().st_size == 0:\n"
        "            return scalar_store(indptr, fold_factor)\n"
        "    time.sleep(2.0)\n"
        "    pathlib.Path('here').touch()\n"
        "    time.sleep(600)\n"
    )
    arguments = ("--impl", "mine:bad", "--workers", "2", "--max-examples", "3", "--seed", "4")
    result = interrupted("run", "fold_indptr", *arguments)
    assert result.code == 130
    assert result.out.count("FINDING  capture_error:host_copy") == 1
    assert "note       not minimised: interrupted" in result.out
    assert re.search(r"^1 finding: 0 cases in .*, interrupted$", result.out, re.MULTILINE)


def test_interrupt_is_never_taken_for_a_fault_of_the_case(interrupted: Run, work: Path) -> None:
    write_waiting(work, 1)
    result = interrupted("run", "fold_indptr", "--impl", "mine:bad", "--max-examples", "30")
    assert result.code == 130
    assert "FINDING" not in result.out
    assert re.search(r"^no findings: .*, interrupted$", result.out, re.MULTILINE)
    assert not (work / "corpus").exists()


def test_interrupted_replay(interrupted: Run, work: Path, save: Callable[..., Path]) -> None:
    save("one")
    write_waiting(work, 1)
    result = interrupted("replay", "--impl", "mine:bad")
    assert result.code == 130
    assert "Traceback" not in result.err
    assert "FAILED" not in result.out and "FIXED" not in result.out


@pytest.mark.parametrize("to_group", [True, False], ids=["as the terminal does", "parent alone"])
def test_interrupt_leaves_no_process_behind(start: Start, work: Path, processes: Any, to_group: bool) -> None:
    write_waiting(work, 3)
    process = start("run", "fold_indptr", "--impl", "mine:bad", "--seed", "4", "--workers", "2", own_group=True)
    deadline = time.monotonic() + PATIENCE
    while not (work / "here").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    family = processes.below(process.pid)
    assert len(family) >= 3, "a zygote and its workers"
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "FINDING  capture_error:host_copy" in out
    assert not processes.left(family)


def test_interrupted_program(capfuzz: Run, work: Path) -> None:
    (work / "program.py").write_text("print('begun', flush=True)\nraise KeyboardInterrupt\n")
    result = capfuzz("sim", "program.py")
    assert (result.code, result.out) == (130, "begun\n")
