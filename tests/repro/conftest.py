"""Running a generated script in a process of its own, without importing torch again."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Ran:
    """How a script ended, and what it printed on both streams."""

    code: int
    out: str

    @property
    def last(self) -> str:
        return (self.out.strip().splitlines() or [""])[-1]


ON_SIM = "import capfuzz\non_sim = capfuzz.sim()\non_sim.__enter__()\n"
"""In front of a script for a GPU: it runs as it is on the simulated device."""


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[[str], Ran]:
    """`run_script(text)`: runs it as a program in a forked process."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")

    def run(text: str) -> Ran:
        path = tmp_path / "script.py"
        path.write_text(text)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            code = 1
            try:
                exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader) as stream:
            out = stream.read()
        return Ran(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), out)

    return run
