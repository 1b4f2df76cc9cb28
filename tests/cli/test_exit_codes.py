"""What the process tells its caller: 0 nothing, 1 findings, 2 usage, 3 capfuzz failed, 130 interrupted or unread."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import capfuzz as package
from capfuzz import corpus as corpora
from capfuzz.cli import doctor as doctor_module
from capfuzz.cli import entries as entries_module
from capfuzz.cli import list_ as list_module
from capfuzz.cli import run as run_module
from capfuzz.cli import show as show_module
from capfuzz.cli.console import console
from capfuzz.findings import reduce as reduce_module
from capfuzz.targets import judge as judge_module

Run = Callable[..., Any]

VERBS = ("run", "replay", "list", "show", "repro", "minimize", "triage", "corpus", "smoke", "sim", "doctor")


# -- help and verbs ----------------------------------------------------------------------------------------------------


def test_version(capfuzz: Run) -> None:
    result = capfuzz("--version")
    assert result.code == 0
    assert package.__version__ in result.out


def test_help_names_every_verb_and_status(capfuzz: Run) -> None:
    result = capfuzz("--help")
    assert (result.code, result.err) == (0, "")
    assert all(f"\n  {verb} " in result.out for verb in VERBS)
    assert all(text in result.out for text in ("0 nothing found", "1 findings", "2 usage", "3 the harness", "130 interrupted"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_each_verb(capfuzz: Run, verb: str, flag: str) -> None:
    result = capfuzz(verb, flag)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: capfuzz {verb} ")


def test_nothing_asked(capfuzz: Run) -> None:
    result = capfuzz()
    assert result.code == 2
    assert "Usage: capfuzz" in result.out + result.err and "Traceback" not in result.err


@pytest.mark.parametrize(
    ("typed", "meant"), [("replya", "replay"), ("runn", "run"), ("doctr", "doctor"), ("ls", "list"), ("xyzzy", None)]
)
def test_unknown_verb(capfuzz: Run, typed: str, meant: str | None) -> None:
    result = capfuzz(typed)
    assert (result.code, result.out) == (2, "")
    assert f"no verb named {typed!r}" in result.err
    assert (f"did you mean {meant!r}?" in result.err) if meant else ("did you mean" not in result.err)
    assert all(verb in result.err for verb in VERBS)


@pytest.mark.parametrize("verb", ["replay", "list", "smoke", "doctor"])
def test_unknown_option(capfuzz: Run, verb: str) -> None:
    result = capfuzz(verb, "--nosuchoption")
    assert (result.code, result.out) == (2, "")
    assert "No such option" in result.err and "--nosuchoption" in result.err


# -- capfuzz itself fails ----------------------------------------------------------------------------------------------


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("planted defect")


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        (judge_module, "check", ["run", "fold_indptr", "--max-examples", "3"]),  # in a worker
        (judge_module, "check", ["replay"]),
        (run_module, "engines", ["run", "fold_indptr", "--max-examples", "3"]),
        (entries_module, "subject_of", ["replay"]),
        (show_module, "entry_text", ["show", "corpus/fold_indptr/one.json"]),
        (list_module, "_text", ["list"]),
        (doctor_module, "check", ["doctor"]),
    ],
)
def test_a_defect_of_capfuzz_is_status_3_and_never_looks_like_a_finding(
    capfuzz: Run,
    save: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    arguments: list[str],
) -> None:
    save("one")
    monkeypatch.setattr(module, name, fail)
    result = capfuzz(*arguments)
    assert result.code == 3
    assert "RuntimeError: planted defect" in result.err, "the person who mends it needs to see it"
    assert "in fail\n" in result.err, "with its own traceback, whatever process it was raised in"
    assert result.err.count("This is a defect of capfuzz") == 1
    assert "FINDING" not in result.out


def test_a_defect_while_minimising_is_status_3_too(capfuzz: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_module, "minimise", fail)
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--max-examples", "3")
    assert result.code == 3
    assert "planted defect" in result.err


def test_a_defect_while_minimising_loses_no_finding(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_module, "minimise", fail)
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--max-examples", "3")
    assert "FINDING  capture_error:host_copy" in result.out and "note       not minimised: " in result.out
    [path] = (work / "corpus").rglob("*.json")
    assert corpora.load(path).label == "capture_error:host_copy"


@pytest.mark.parametrize("error", [EOFError, PermissionError, BaseException])
def test_a_defect_that_click_has_a_meaning_for_is_status_3_too(
    capfuzz: Run, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """click takes EOFError for Ctrl-C, and nobody catches a BaseException."""

    def planted(*_: object) -> NoReturn:
        raise error(7, "planted defect")

    monkeypatch.setattr(list_module, "_text", planted)
    result = capfuzz("list")
    assert (result.code, result.out) == (3, "")
    assert "planted defect" in result.err and "Traceback" in result.err
    assert result.err.count("This is a defect of capfuzz") == 1


# -- nobody reads ------------------------------------------------------------------------------------------------------


def piped(work: Path, *arguments: str) -> tuple[int, str]:
    """Status and standard error of `capfuzz ARGUMENTS | head -1`."""
    command = [sys.executable, "-m", "capfuzz", *arguments]
    process = subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    return process.wait(timeout=60), err


def test_run_into_head(work: Path) -> None:
    code, err = piped(work, "run", "fold_indptr", "--variant", "scalar_store", "--max-examples", "20000")
    assert (code, err) == (130, "")
    [path] = (work / "corpus").rglob("*.json")
    assert corpora.load(path).label == "capture_error:host_copy", "saved before it is printed"


def test_replay_into_head(work: Path, save: Callable[..., Path]) -> None:
    for number in range(30):
        save(f"entry-{number:02d}")
    code, err = piped(work, "replay")
    assert (code, err) == (130, "")


@pytest.mark.parametrize(("arguments", "code"), [("list", 0), ("run fold_indptr --variant scalar_store -x", 1)])
def test_no_standard_output_at_all(work: Path, arguments: str, code: int) -> None:
    done = subprocess.run(
        f"'{sys.executable}' -m capfuzz {arguments} >&-", shell=True, cwd=work, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", ["list", "run fold_indptr --max-examples 3", "doctor", "--help", "replay --help"])
def test_full_disk_below_standard_output_is_not_a_finding(work: Path, arguments: str) -> None:
    done = subprocess.run(
        f"'{sys.executable}' -m capfuzz {arguments} > /dev/full",
        shell=True,
        cwd=work,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stderr == "Error: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("arguments", "code"), [("run nosuch", 2), ("replay", 2), ("nosuch", 2)])
def test_full_disk_below_standard_error_leaves_the_status(work: Path, arguments: str, code: int) -> None:
    done = subprocess.run(
        f"'{sys.executable}' -m capfuzz {arguments} 2> /dev/full", shell=True, cwd=work, stdout=subprocess.PIPE, timeout=60
    )
    assert (done.returncode, done.stdout) == (code, b"")


class Filling(io.StringIO):
    """A file whose disk is full when a finding comes."""

    def write(self, text: str) -> int:
        if "FINDING" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_disk_that_fills_while_a_campaign_runs_is_no_defect(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing happens inside the engine: its error may be taken neither for a failing case nor for the harness's."""
    monkeypatch.setattr(run_module, "console", lambda: type(console())(file=Filling(), soft_wrap=True))
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--max-examples", "3")
    assert result.code == 3
    assert result.err == "Error: standard output cannot be written: No space left on device\n"
    assert len(list((work / "corpus").rglob("*.json"))) == 1, "saved before it is printed"


def test_nobody_reads_the_help(work: Path) -> None:
    """A reader that is gone before the first byte; click alone would end with 1, which means findings."""
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["--help"], ["list"], ["doctor"]):
        command = [sys.executable, "-m", "capfuzz", *arguments]
        done = subprocess.run(command, cwd=work, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (130, "")
    os.close(writer)
