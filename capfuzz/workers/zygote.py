"""The process that forks workers: everything is imported in it, and it has no threads and no GPU.

It is forked from the parent, so it must be made before the parent starts a thread (a progress line has one). Where the parent
has already touched the GPU (a user's module may, at import), a fork could not use it: then the zygote is a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import warnings
from typing import Any

import torch

from capfuzz.workers.wire import WorkerSpec, receive, send
from capfuzz.workers.worker import serve

_FILES = 3  # that go with a request for a worker: its connection, its stack file, its output


class Zygote:
    """The parent's handle of it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection = ours
        if torch.cuda.is_initialized():
            command = [sys.executable, "-m", "capfuzz.workers.zygote", str(theirs.fileno())]
            self._pid = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL).pid
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of BLAS, which survive a fork
                self._pid = os.fork()
            if self._pid == 0:
                ours.close()
                _run(theirs)
        theirs.close()

    def start(self, spec: WorkerSpec, connection: socket.socket, stack: int, output: int) -> int:
        """Forks a worker that is connected by `connection` and returns its process id."""
        send(self._connection, spec)
        socket.send_fds(self._connection, [b"f"], [connection.fileno(), stack, output])
        pid: int = receive(self._connection)
        return pid

    def status_of(self, pid: int) -> int:
        """Waits for a worker's end: its exit status, negative for a signal."""
        send(self._connection, pid)
        status: int = receive(self._connection)
        return status

    def close(self) -> None:
        """The zygote ends its workers and itself when the connection closes."""
        self._connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _run(connection: socket.socket) -> None:
    """Never returns: what this process inherited (buffers, exit handlers) is not its own."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which hangs up
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _serve(connection)
    finally:
        os._exit(0)


def _serve(connection: socket.socket) -> None:
    children: set[int] = set()
    try:
        while True:
            message: Any = receive(connection)
            if isinstance(message, WorkerSpec):
                _, files, _, _ = socket.recv_fds(connection, 1, _FILES)
                pid = os.fork()
                if pid == 0:
                    connection.close()
                    _work(message, *files)
                for file in files:
                    os.close(file)
                children.add(pid)
                send(connection, pid)
            else:
                children.discard(message)
                send(connection, os.waitstatus_to_exitcode(os.waitpid(message, 0)[1]))
    except EOFError:
        pass
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _work(spec: WorkerSpec, connection: int, stack: int, output: int) -> None:
    status = 1
    try:
        serve(socket.socket(fileno=connection), stack, output, spec)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    _run(socket.socket(fileno=int(sys.argv[1])))
