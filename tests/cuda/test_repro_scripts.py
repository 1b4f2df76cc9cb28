"""Every kind of script on a real GPU, each a program of its own as a reader would run it: it shows what its entry says.

With `CAPFUZZ_RECORD=DIR` what they print is written to DIR: `tests/repro/h200` holds what an H200 has printed.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from capfuzz.corpus import Entry, load
from capfuzz.corpus.replay import subject_of
from capfuzz.devices import open_device
from capfuzz.differential import Cause, Runner, Verdict
from capfuzz.repro import script
from capfuzz.targets import Subject, get_target, shipped
from capfuzz.targets.judge import judge
from tests.cuda.test_cuda_device import pytestmark as pytestmark
from tests.repro.test_schedules import FUNCTIONS, ONE, RUNNERS, TARGET, case, entry_of
from tests.repro.test_schedules import mine as mine
from tests.repro.test_scripts import ENTRIES, shows

ROOT = Path(__file__).parents[2]
KEPT = [*sorted(ENTRIES.glob("*.json")), *sorted((ROOT / "corpus").glob("*/*.json"))]
SECONDS = 300

DEADLY = """
import os
import time

import torch
import torch.nn.functional as F


def fold(indptr, fold_factor):
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    return F.pad(torch.cumsum(lengths, 0), (1, 0)).to(indptr.dtype)


def dies(indptr, fold_factor):
    os._exit(7)


def hangs(indptr, fold_factor):
    while True:
        time.sleep(0.1)


def spills(indptr, fold_factor):
    torch.as_strided(indptr, (indptr.numel() + 1,), (1,), 0)[-1:].zero_()
    return fold(indptr, fold_factor)


_calls = []


def uneven(indptr, fold_factor):
    _calls.append(1)
    return fold(indptr, fold_factor) + len(_calls)


def asserts_in_replays(indptr, fold_factor):
    out = fold(indptr, fold_factor)
    if torch.cuda.is_current_stream_capturing():
        torch._assert_async(out[-1] < 2)
    return out


def looks_up_in_replays(indptr, fold_factor):
    out = fold(indptr, fold_factor)
    table = torch.zeros(2, dtype=out.dtype, device=out.device)
    return out + table[out[-1:]] if torch.cuda.is_current_stream_capturing() else out
"""
MORE = [{"lengths": [1], "start": 0}, {"lengths": [2], "start": 0}]
DEADLY_ONES = {
    "dies": (Verdict.CRASH, None, ONE),
    "hangs": (Verdict.HANG, None, ONE),
    "spills": (Verdict.DIVERGENCE, Cause.OUT_OF_BOUNDS.value, ONE),
    "uneven": (Verdict.NONDETERMINISTIC, None, ONE),
    "asserts_in_replays": (Verdict.REPLAY_ERROR, "AcceleratorError", MORE),
    "looks_up_in_replays": (Verdict.REPLAY_ERROR, "AcceleratorError", MORE),
}


def on_the_gpu(text: str, work: Path, name: str) -> tuple[int, str, str]:
    """The exit status, the last line and all that was printed."""
    (work / "script.py").write_text(text)
    child = subprocess.run([sys.executable, "script.py"], cwd=work, capture_output=True, text=True, timeout=SECONDS)
    errors = [line for line in child.stderr.splitlines(keepends=True) if "CUDA_KERNEL_ASSERT" not in line]
    printed = "".join([child.stdout, *(["-- standard error\n", *errors] if errors else [])])
    if (directory := os.environ.get("CAPFUZZ_RECORD")) is not None:
        for path in (f"{work}{os.sep}", f"{Path(torch.__file__).parents[1]}{os.sep}", f"{Path(os.__file__).parent}{os.sep}"):
            printed = printed.replace(path, "")
        machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / f"{name}.txt").write_text(f"# {machine}, exit status {child.returncode}\n{printed}")
    return child.returncode, (child.stdout.strip().splitlines() or [""])[-1], child.stdout + child.stderr


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_an_entry_has_a_script_that_fails_on_a_gpu_as_it_says(tmp_path: Path, path: Path) -> None:
    entry = load(path)
    subject = subject_of(entry)
    code, last, out = on_the_gpu(script(entry, subject, f"# {path.stem}"), tmp_path, path.stem)
    assert (code, last) == (1, entry.label), out
    if entry.cause != Cause.UNWRITTEN_OUTPUT:  # what lies there is not the same
        with open_device("sim") as device:
            mismatch = judge(device, subject, entry.case).mismatch
        if mismatch is not None:
            shows(out, mismatch)
    if entry.verdict is not Verdict.INVARIANT:  # there the shipped implementation says what is right
        right = script(entry, shipped(get_target(entry.target)), f"# {path.stem}, mended")
        code, last, out = on_the_gpu(right, tmp_path, f"{path.stem}--mended")
        assert (code, last) == (0, "equivalent"), out


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_is_driven_as_the_case_says(mine: Any, tmp_path: Path, name: str) -> None:
    label, driven = FUNCTIONS[name]
    entry = entry_of(Subject(TARGET, f"user:mine_driven:{name}", getattr(mine, name)), driven)
    _fails(tmp_path, entry, Subject(TARGET, f"user:mine_driven:{name}", getattr(mine, name)), label, name)


@pytest.mark.parametrize("name", RUNNERS)
def test_a_runner_is_called_as_a_server_calls_it(mine: Any, tmp_path: Path, name: str) -> None:
    label, driven = RUNNERS[name]
    subject = Subject(TARGET, f"variant:{name}", Runner(mine.fold, getattr(mine, name)))
    _fails(tmp_path, entry_of(subject, driven), subject, label, name)


@pytest.mark.parametrize("name", DEADLY_ONES)
def test_what_ends_a_process_or_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    module = importlib.import_module("deadly")
    monkeypatch.delitem(sys.modules, "deadly")
    verdict, cause, steps = DEADLY_ONES[name]
    subject = Subject(TARGET, f"user:deadly:{name}", getattr(module, name))
    changes = {"target": TARGET.name, "implementation": subject.label, "case": case(steps), "blame": None}
    entry = msgspec.structs.replace(load(KEPT[0]), verdict=verdict, cause=cause, message="", **changes)
    _fails(tmp_path, entry, subject, entry.label, name)


def _fails(work: Path, entry: Entry, subject: Subject, label: str, name: str) -> None:
    text = script(entry, subject, f"# {name}")
    assert "import deadly" not in text and "import mine" not in text
    code, last, out = on_the_gpu(text, work, name)
    assert (code, last) == (1, label), out
