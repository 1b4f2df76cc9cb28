"""`capfuzz repro`: a script that shows the fault of an entry, run here as a reader would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Save = Callable[..., Path]

DEADLY = """\
import os, time
import torch
import torch.nn.functional as F

main = 2
eager = {"size": 1}


def run(indptr, fold_factor):
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    return F.pad(torch.cumsum(lengths, 0), (1, 0)).to(indptr.dtype)


def dies(indptr, fold_factor):
    if fold_factor == main:
        os._exit(7)
    return run(indptr, fold_factor)


def hangs(indptr, fold_factor):
    while fold_factor == main:
        time.sleep(0.1)
    return run(indptr, fold_factor)


def given(indptr, fold_factor):
    whole = run(indptr, fold_factor)
    out = torch.empty_like(whole)
    out[eager["size"] :] = whole[eager["size"] :]
    return out


class Callable:
    def __call__(self, indptr, fold_factor):
        return given(indptr, fold_factor)


an_object = Callable()


def spills(indptr, fold_factor):
    torch.as_strided(indptr, (indptr.numel() + 1,), (1,), 0)[-1:].zero_()
    return run(indptr, fold_factor)


def uneven(indptr, fold_factor):
    main_calls.append(1)
    return run(indptr, fold_factor) + len(main_calls)


main_calls = []
"""


def as_a_program(path: Path, seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)


def last(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    return done.returncode, (done.stdout.strip().splitlines() or [""])[-1]


def test_the_script_for_a_gpu(capfuzz: Run, save: Save) -> None:
    path = save("one")
    result = capfuzz("repro", path)
    assert (result.code, result.err) == (0, "")
    header, *_ = result.out.splitlines()
    assert header.startswith("# capture_error-host_copy-")
    assert f"in fold_indptr (variant:scalar_store), capfuzz 0.1.0, torch 2.13.0 on sim; again: capfuzz replay {path}" in header
    compile(result.out, "script", "exec")
    assert 20 <= len(result.out.splitlines()) <= 60
    assert "capfuzz" not in "\n".join(result.out.splitlines()[1:])
    assert "    out[0] = 0\n" in result.out


def test_the_script_for_the_simulated_device_runs(capfuzz: Run, save: Save, work: Path) -> None:
    result = capfuzz("repro", save("one"), "--sim", "-o", "script.py")
    assert (result.code, result.out, result.err) == (0, "", "")
    done = as_a_program(work / "script.py")
    assert last(done) == (1, "capture_error:host_copy")
    assert "out[0] = 0" in done.stdout, "the line that did it is shown"
    assert done.stdout.startswith("eager: tensor(")


def test_a_mended_implementation_passes(capfuzz: Run, save: Save, mine: Path, work: Path) -> None:
    path = save("one", implementation="user:mine:bad", expect="equivalent")
    for function, ended in (("bad", (1, "capture_error:host_copy")), ("good", (0, "equivalent"))):
        result = capfuzz("repro", path, "--sim", "--impl", f"mine:{function}", "-o", "script.py")
        assert (result.code, result.err) == (0, "")
        assert "import mine" not in (work / "script.py").read_text()
        assert last(as_a_program(work / "script.py")) == ended


def test_a_users_entry_needs_the_function_named(capfuzz: Run, save: Save, mine: Path) -> None:
    path = save("one", implementation="user:mine:bad", expect="equivalent")
    result = capfuzz("repro", path)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"Error: {path}: was found on mine:bad, and an entry never names code to import: add --impl mine:bad\n"
    )
    assert "mine" not in sys.modules


def deadly(work: Path, save: Save, function: str, **changes: Any) -> Path:
    (work / "deadly.py").write_text(DEADLY)
    case = {"values": {"fold_factor": 2, "dtype": "int32", "layout": "contiguous"}, "steps": [{"lengths": [1], "start": 0}]}
    fields = {"implementation": f"user:deadly:{function}", "expect": "equivalent", "case": case, "cause": None, **changes}
    return save(function, **fields)


@pytest.mark.parametrize(
    ("function", "verdict", "cause"),
    [
        ("dies", "crash", None),
        ("given", "divergence", "unwritten_output"),
        ("spills", "divergence", "out_of_bounds"),
        ("uneven", "nondeterministic", None),
    ],
)
def test_other_ways_to_fail(capfuzz: Run, save: Save, work: Path, function: str, verdict: str, cause: str | None) -> None:
    """The names in this module are also those of the script: both keep their meaning."""
    path = deadly(work, save, function, verdict=verdict, cause=cause)
    result = capfuzz("repro", path, "--sim", "--impl", f"deadly:{function}", "-o", "script.py")
    assert (result.code, result.err) == (0, "")
    done = as_a_program(work / "script.py")
    assert last(done) == (1, f"{verdict}:{cause}" if cause else verdict), done.stdout + done.stderr


def test_a_hang_is_ended_with_its_line(capfuzz: Run, save: Save, work: Path) -> None:
    path = deadly(work, save, "hangs", verdict="hang")
    assert capfuzz("repro", path, "--sim", "--impl", "deadly:hangs", "-o", "script.py").code == 0
    text = (work / "script.py").read_text()
    (work / "script.py").write_text(text.replace("later(10,", "later(1,"))
    done = as_a_program(work / "script.py")
    assert last(done) == (1, "hang")
    assert "in hangs" in done.stderr


def test_what_cannot_be_copied_is_imported(capfuzz: Run, save: Save, work: Path) -> None:
    path = deadly(work, save, "an_object", verdict="divergence", cause="unwritten_output")
    result = capfuzz("repro", path, "--sim", "--impl", "deadly:an_object", "-o", "script.py")
    assert (result.code, result.err) == (0, "")
    text = (work / "script.py").read_text()
    assert "# Run it where deadly can be imported: " in text and "from deadly import an_object" in text
    assert last(as_a_program(work / "script.py")) == (1, "divergence:unwritten_output")


def test_errors_are_one_line(capfuzz: Run, save: Save, work: Path) -> None:
    path = save("one")
    broken = save("two", target="fold_indptrr")
    for arguments, says in (
        ((path, "-o", "no/such/file.py"), "-o no/such/file.py: cannot be written: No such file or directory"),
        ((broken,), "two.json: field $.target: no target named 'fold_indptrr'"),
        (("nosuch.json",), "nosuch.json: cannot be read"),
        ((path, "--impl", "mine:none"), "--impl 'mine:none': no module named 'mine'"),
    ):
        result = capfuzz("repro", *arguments)
        assert (result.code, result.out) == (2, "")
        assert says in result.err and result.err.count("\n") == 1
