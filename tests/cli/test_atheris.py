"""`--engine atheris`: the same findings, guided by coverage, from a child process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capfuzz import corpus as corpora

Run = Callable[..., Any]

needs_atheris = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")

SECONDS = 25.0


@needs_atheris
@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("scalar_store", "capture_error:host_copy"),
        ("cached_tensor", "divergence:stale_host_value"),
        ("int32_wrap", "reference_mismatch"),
    ],
)
def test_fault_is_found_minimised_and_saved(capfuzz: Run, work: Path, name: str, label: str) -> None:
    """`cached_tensor` shows only with changed inputs, `int32_wrap` only for int64 and a large sum: whole cases out of bytes."""
    arguments = ("run", "fold_indptr", "--variant", name, "--engine", "atheris", "--max-time", f"{SECONDS:g}", "-x")
    begun = time.monotonic()
    result = capfuzz(*arguments, "--seed", "1")
    assert time.monotonic() - begun < SECONDS, "stops at the first finding, not at the end of its time"
    assert (result.code, result.err) == (1, "")
    assert "atheris, seed 1, at most 25 s" in result.out.splitlines()[0]
    assert f"FINDING  {label}  in fold_indptr (variant:{name})" in result.out
    assert f"again      capfuzz run fold_indptr --variant {name} --engine atheris --seed 1" in result.out
    [path] = (work / "corpus").rglob("*.json")
    entry = corpora.load(path)
    assert (entry.label, entry.found.engine) == (label, "atheris")
    assert len(entry.case.steps) == (2 if name == "cached_tensor" else 1), "minimised"


@needs_atheris
def test_budget_summary_and_byte_corpus(capfuzz: Run, work: Path) -> None:
    result = capfuzz("run", "fold_indptr", "--engine", "atheris", "--seed", "1", "--max-examples", "60")
    assert (result.code, result.err) == (0, "")
    summary = re.search(r"^no findings: (\d+) cases in ", result.out, re.MULTILINE)
    assert summary is not None and 60 <= int(summary.group(1)) < 120
    assert re.search(r"^  batch +\S", result.out, re.MULTILINE), "axes covered in the child are reported"
    assert list((work / ".capfuzz" / "atheris" / "fold_indptr").iterdir())
    assert [path.name for path in work.iterdir()] == [".capfuzz"]
    assert not (work / "corpus").exists()


@needs_atheris
def test_child_that_dies_is_status_3_with_its_last_words(capfuzz: Run, work: Path) -> None:
    (work / "mine.py").write_text(
        "import os, sys\n\nfrom capfuzz.targets.fold_indptr import fold_indptr\n\n\n"
        "def dies(indptr, fold_factor):\n"
        "    if 'atheris' in sys.modules:\n"
        "        print('last words', file=sys.stderr, flush=True)\n"
        "        os._exit(7)\n"
        "    return fold_indptr(indptr, fold_factor)\n"
    )
    assert "atheris" not in sys.modules, "atheris belongs into the child only"
    result = capfuzz("run", "fold_indptr", "--impl", "mine:dies", "--engine", "atheris", "--max-time", "20")
    assert result.code == 3
    assert "exit status 7" in result.err and "last words" in result.err
    assert "Traceback" not in result.err


@needs_atheris
@pytest.mark.parametrize("to_group", [True, False], ids=["as the terminal does", "parent alone"])
def test_interrupt_ends_the_child_too(work: Path, to_group: bool) -> None:
    command = [sys.executable, "-m", "capfuzz", "run", "fold_indptr", "--engine", "atheris", "--max-time", "120"]
    process = subprocess.Popen(
        command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        first = work / ".capfuzz" / "atheris" / "fold_indptr" / "first-00"  # the child has started to fuzz
        while not first.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in err
        assert re.search(r"^no findings: \d+ cases in .*, interrupted$", out, re.MULTILINE)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)  # nobody of the group is left
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_not_installed(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    result = capfuzz("run", "fold_indptr", "--engine", "atheris", "--max-time", "5")
    assert result.code == 2
    assert result.err.startswith("Error: ") and result.err.count("\n") == 1
    assert "pip install 'capfuzz[atheris]'" in result.err
    assert "--engine hypothesis" in result.err
    assert not (work / ".capfuzz").exists()
