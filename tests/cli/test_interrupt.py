"""Ctrl-C: what was found is printed and saved, the summary says that the run was interrupted, the exit status is 130."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
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

# Raises KeyboardInterrupt in the capture with this number; 1 is the one that shows the fault, 2 and 3 confirm it, later ones
# minimise it, and after those the axes are varied.
INTERRUPTING = """\
import torch

captures = 0


def bad(indptr, fold_factor):
    global captures
    if torch.cuda.is_current_stream_capturing():
        captures += 1
        if captures == {number}:
            raise KeyboardInterrupt
    out = torch.empty((indptr.numel() - 1) * fold_factor + 1, dtype=indptr.dtype, device=indptr.device)
    out[0] = 0
    out[1:] = torch.cumsum(torch.diff(indptr).repeat_interleave(fold_factor), 0)
    return out
"""


@pytest.fixture
def start(work: Path) -> Iterator[Start]:
    """A `capfuzz` process that is still running; none outlives the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capfuzz", *arguments]
        process = subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
def test_interrupt_while_a_fault_is_confirmed_or_minimised_keeps_it(capfuzz: Run, work: Path, number: int) -> None:
    """In this process, where the moment can be chosen: the fault was seen once, so it may not be lost."""
    (work / "mine.py").write_text(INTERRUPTING.format(number=number))
    result = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--seed", "4", "--max-examples", "30")
    assert result.code == 130
    assert "Traceback" not in result.err
    assert result.out.count("FINDING  capture_error:host_copy") == 1
    assert "note       not minimised: interrupted" in result.out
    assert re.search(r"^1 finding: .*, interrupted$", result.out, re.MULTILINE)
    [path] = (work / "corpus").rglob("*.json")
    assert corpora.load(path).label == "capture_error:host_copy"


STALE = """\
import torch

from capfuzz.targets.fold_indptr import cached_tensor

captures = 0


def bad(indptr, fold_factor):
    global captures
    if torch.cuda.is_current_stream_capturing():
        captures += 1
        if captures == {number}:
            raise KeyboardInterrupt
    return cached_tensor(indptr, fold_factor)
"""


@pytest.mark.parametrize(("number", "has_line"), [(2, False), (3, True)])
def test_interrupt_while_the_line_is_searched_keeps_the_divergence(
    capfuzz: Run, work: Path, number: int, has_line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture 1 shows it; 2 runs it again with its values traced, for the line; 3 confirms it."""
    case = Case(
        {"fold_factor": 1, "dtype": "int32", "layout": "contiguous"},
        [{"lengths": [0], "start": 0}, {"lengths": [1], "start": 0}],
    )
    monkeypatch.setitem(targets(), "fold_indptr", replace(targets()["fold_indptr"], strategy=lambda: just(case)))
    (work / "mine.py").write_text(STALE.format(number=number))
    result = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--seed", "4", "--max-examples", "30")
    assert result.code == 130
    assert result.out.count("FINDING  divergence:stale_host_value") == 1
    assert "note       not minimised: interrupted" in result.out
    [path] = (work / "corpus").rglob("*.json")
    entry = corpora.load(path)
    assert entry.label == "divergence:stale_host_value"
    assert (entry.blame is not None) == has_line
    assert entry.case == case


def test_interrupt_is_never_taken_for_a_fault_of_the_case(capfuzz: Run, work: Path) -> None:
    (work / "mine.py").write_text(INTERRUPTING.format(number=1))
    result = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--max-examples", "30")
    assert result.code == 130
    assert "FINDING" not in result.out
    assert re.search(r"^no findings: .*, interrupted$", result.out, re.MULTILINE)
    assert not (work / "corpus").exists()


def test_interrupted_replay(capfuzz: Run, work: Path, save: Callable[..., Path]) -> None:
    save("one")
    (work / "mine.py").write_text(INTERRUPTING.format(number=1))
    result = capfuzz("replay", "--impl", "mine:bad")
    assert result.code == 130
    assert "Traceback" not in result.err
    assert "FAILED" not in result.out and "FIXED" not in result.out


def test_interrupted_program(capfuzz: Run, work: Path) -> None:
    (work / "program.py").write_text("print('begun', flush=True)\nraise KeyboardInterrupt\n")
    result = capfuzz("sim", "program.py")
    assert (result.code, result.out) == (130, "begun\n")
