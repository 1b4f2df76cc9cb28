"""What keeps processes apart: a worker may do to itself what it likes, and neither the parent nor the machine suffers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_MOST_LIKELY_KILLED = "1000"
_inherited: list[object] = []


def keep_standard_files() -> None:
    """Opens what is closed of standard input, output and error (`>&-`): a connection must not get one of their numbers."""
    while True:
        file = os.open(os.devnull, os.O_RDWR)
        if file > 2:
            os.close(file)
            return


def close_unused(connections: Iterable[socket.socket]) -> None:
    """In a forked process: the parent's ends, so that the parent's death is seen where they lead to."""
    for connection in connections:
        connection.close()


def end_with_parent(parent: int) -> None:
    """The process is killed when its parent dies, in whatever way, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has died before
            os._exit(1)


def settle(connection: int, stack: int, output: int) -> None:
    """In a worker: it prints into `output`, reads nothing, leaves no core file, is the first that a machine short of memory
    kills, and hands its own files to no process that it starts."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for file in (connection, stack, output):
        os.set_inheritable(file, False)
    # Not those that were inherited: under pytest they lead to pytest's own files. They are kept, lest they flush at their end.
    _inherited.extend((sys.stdin, sys.stdout, sys.stderr))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", errors="backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", errors="backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        if most:
            resource.setrlimit(resource.RLIMIT_CORE, (1, most))  # 0 is not heeded where cores go to a program; 1 byte is
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(_MOST_LIKELY_KILLED)
