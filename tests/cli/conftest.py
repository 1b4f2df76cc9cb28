"""What every test of the command line needs: `capfuzz` in this process or in its own, in an empty working directory."""

from __future__ import annotations

import importlib
import json
import linecache
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capfuzz.cli.main import main

MINE = """\
import torch
import torch.nn.functional as F


def good(indptr, fold_factor):
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    return F.pad(torch.cumsum(lengths, 0), (1, 0)).to(indptr.dtype)


def bad(indptr, fold_factor):
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    out = torch.empty(lengths.numel() + 1, dtype=indptr.dtype, device=indptr.device)
    out[0] = 0
    out[1:] = torch.cumsum(lengths, 0)
    return out


def two_faults(indptr, fold_factor):
    if fold_factor > 2:
        return bad(indptr, fold_factor)
    indptr[-1].item()
    return good(indptr, fold_factor)


CONSTANT = 3
"""


@dataclass
class Result:
    """What a process would have left: exit status, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory. What is imported from it is forgotten afterwards: every test has its own `mine.py`."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions of one file within a second look alike to the cache
    yield directory
    _forget(directory)


def _forget(directory: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(directory)):
            del sys.modules[name]
    importlib.invalidate_caches()
    linecache.checkcache()


@pytest.fixture
def capfuzz(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`capfuzz(*arguments)`: the console script's own `main`, in this process, which saves importing torch each time."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["capfuzz", *map(str, arguments)])
        _forget(work)
        capsys.readouterr()
        code: object = None
        try:
            main()
        except SystemExit as end:
            code = end.code
        except Exception:  # the interpreter would print it and end with 1
            traceback.print_exc()
            code = 1
        except BaseException:  # KeyboardInterrupt and capfuzz's own: no caller may see them
            traceback.print_exc()
            code = -1
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
        streams = capsys.readouterr()
        return Result(int(code or 0), streams.out, streams.err)  # type: ignore[call-overload]

    return call


@pytest.fixture
def process(work: Path) -> Callable[..., Result]:
    """`process(*arguments)`: capfuzz in its own process, for what only a process shows."""

    def call(*arguments: object, **options: Any) -> Result:
        command = [sys.executable, "-m", "capfuzz", *map(str, arguments)]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=60, **options)
        return Result(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def mine(work: Path) -> Path:
    """A user's module in the working directory: `good`, `bad` (the aiter fault), `two_faults`, `CONSTANT`."""
    path = work / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture
def entry() -> Callable[..., dict[str, Any]]:
    """`entry(field=value...)`: a good entry, the aiter fault, with top-level fields replaced."""

    def build(**changes: Any) -> dict[str, Any]:
        document: dict[str, Any] = {
            "schema": 1,
            "target": "fold_indptr",
            "implementation": "variant:scalar_store",
            "expect": "fault",
            "verdict": "capture_error",
            "cause": "host_copy",
            "message": "Cannot copy between CPU and CUDA tensors during CUDA graph capture",
            "blame": {"file": "a/b.py", "line": 113, "function": "scalar_store", "text": "out[0] = 0", "op": "copy_"},
            "case": {
                "values": {"fold_factor": 2, "dtype": "int32", "layout": "contiguous"},
                "steps": [{"lengths": [3, 0], "start": 0}],
            },
            "axes": {"batch": "any (tried 0, 1)"},
            "found": {"capfuzz": "0.1.0", "torch": "2.13.0", "device": "sim", "engine": "hypothesis", "seed": 1},
            "issue": None,
        }
        document.update(changes)
        return document

    return build


@pytest.fixture
def save(work: Path, entry: Callable[..., dict[str, Any]]) -> Callable[..., Path]:
    """`save(name, field=value...)`: that entry as `corpus/fold_indptr/<name>.json`."""

    def write(name: str, **changes: Any) -> Path:
        path = Path("corpus") / "fold_indptr" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entry(**changes)))
        return path

    return write
