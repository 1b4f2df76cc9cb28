"""The process that forks workers: everything is imported in it, and it has no threads and no GPU.

It is forked from the parent, so it must be made before the parent starts a thread (a progress line has one). Where the parent
has already touched the GPU (a user's module may, at import), a fork could not use it: then the zygote is a fresh interpreter.
It ends its workers and itself when the parent closes the connection or dies.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import ClassVar, NoReturn
from weakref import WeakSet

import torch

from capfuzz.devices import open_device
from capfuzz.workers.errors import WorkerError
from capfuzz.workers.isolation import close_unused, end_with_parent, keep_standard_files
from capfuzz.workers.wire import Begun, End, Ended, NotStarted, WorkerSpec, receive, send
from capfuzz.workers.worker import serve

ANSWER_SECONDS = 60.0  # what the zygote does takes milliseconds
END_SECONDS = 10.0  # a process that is killed ends, unless a driver holds it
_LOOK_SECONDS = 0.002
_FILES = 3  # that go with a request for a worker: its connection, its stack file, its output


class Zygote:
    """The parent's handle of it. Its methods raise `WorkerError` when it is no more."""

    _all: ClassVar[WeakSet[Zygote]] = WeakSet()

    def __init__(self) -> None:
        keep_standard_files()
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(ANSWER_SECONDS)
        self._process: subprocess.Popen[bytes] | None = None
        with theirs:
            if _gpu_is_used():
                self._process = _fresh(theirs.fileno())
                self._pid = self._process.pid
            else:
                self._pid = self._forked(theirs)
        Zygote._all.add(self)

    def _forked(self, theirs: socket.socket) -> int:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or closed: nothing to be said twice
                stream.flush()
        with _uninterrupted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of BLAS, which survive a fork
            pid = os.fork()
            if pid == 0:
                _begin(theirs, [self._connection, *(zygote._connection for zygote in Zygote._all)])
        return pid

    def start(self, spec: WorkerSpec, connection: socket.socket, stack: int, output: int) -> int:
        """Forks a worker that is connected by `connection` and returns its process id."""
        with self._asking():
            send(self._connection, spec)
            socket.send_fds(self._connection, [b"f"], [connection.fileno(), stack, output])
            answer: Begun | NotStarted = receive(self._connection)
        if isinstance(answer, NotStarted):
            raise WorkerError(answer.text, answer.by_user)
        return answer.pid

    def end(self, pid: int, seconds: float = 0.0) -> Ended:
        """Ends a worker, and the processes that it started, if it does not end by itself in so many seconds."""
        with self._asking():
            send(self._connection, End(pid, seconds))
            ended: Ended = receive(self._connection)
        return ended

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise WorkerError(f"the process that starts workers {self._fate()}", by_user=False) from error

    def _fate(self) -> str:
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return "has ended"
        return "does not answer" if pid == 0 else f"has ended: {fate(os.waitstatus_to_exitcode(status))}"

    def close(self) -> None:
        """Ends the zygote with its workers."""
        Zygote._all.discard(self)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # a zygote that was forked later may have the connection too
        self._connection.close()
        if not _ends(self._pid, END_SECONDS + 1.0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            _ends(self._pid, END_SECONDS)
        if self._process is not None:
            self._process.returncode = 0  # so that its own finaliser does not wait for it again


def _gpu_is_used() -> bool:
    """Not `torch.cuda.is_initialized`: the simulated device, if it is open here, says yes."""
    return bool(getattr(torch.cuda, "_initialized", False))


def fate(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _fresh(connection: int) -> subprocess.Popen[bytes]:
    """Not `-m`: that would look for modules in the working directory first, whatever the parent does."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from capfuzz.workers.zygote import run; run({connection})"
    return subprocess.Popen(
        [sys.executable, "-c", program], pass_fds=[connection], stdin=subprocess.DEVNULL, start_new_session=True
    )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits, and so never rises in the child, which would go on as a second parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ends(pid: int, seconds: float) -> bool:
    """Whether a child of ours ends in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)


# -- in the zygote -----------------------------------------------------------------------------------------------------


def run(connection: int) -> NoReturn:
    """What a fresh interpreter does."""
    _begin(socket.socket(fileno=connection), [])


def _begin(connection: socket.socket, of_parent: list[socket.socket]) -> NoReturn:
    """Never returns: what this process inherited (buffers, exit handlers, the stack of calls) is not its own."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which hangs up
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        close_unused(of_parent)
        _serve(connection)
        status = 0
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        os._exit(status)


def _serve(connection: socket.socket) -> None:
    children: set[int] = set()
    try:
        while True:
            message: WorkerSpec | End = receive(connection)
            if isinstance(message, End):
                children.discard(message.pid)
                send(connection, _end(message.pid, message.seconds))
                continue
            _, files, _, _ = socket.recv_fds(connection, 1, _FILES)
            try:
                pid = _fork(connection, message, files)
            except OSError as error:  # too many processes, no memory
                send(connection, NotStarted(f"no worker can be started: {error.strerror}", by_user=True))
            else:
                children.add(pid)
                send(connection, Begun(pid))
            for file in files:
                os.close(file)
    except (EOFError, OSError):  # the parent has gone
        pass
    finally:
        for pid in children:
            _kill(pid)
        for pid in children:
            _ends(pid, END_SECONDS / len(children))


def _fork(connection: socket.socket, spec: WorkerSpec, files: list[int]) -> int:
    if spec.device == "sim":
        _prepare_sim()
    gc.freeze()  # a worker's collections need not go through all that was imported
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            connection.close()
            end_with_parent(zygote)
            os.setpgid(0, 0)
            serve(socket.socket(fileno=files[0]), files[1], files[2], spec)
            status = 0
        except BaseException:
            with contextlib.suppress(BaseException):
                traceback.print_exc()
                sys.stderr.flush()
        finally:
            os._exit(status)
    with contextlib.suppress(OSError):  # whoever of the two comes first
        os.setpgid(pid, pid)
    return pid


@functools.cache
def _prepare_sim() -> None:
    """What opening it imports is imported here, once, and not in every worker. Only here: a GPU must not be touched."""
    with open_device("sim"):
        pass


def _end(pid: int, seconds: float) -> Ended:
    """Not reaped before its group is killed: until then nobody else can have its number."""
    by_itself = _has_ended(pid, seconds)
    _kill(pid)
    if not (by_itself or _has_ended(pid, END_SECONDS)):
        return Ended(None, by_itself=False)
    return Ended(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), by_itself)


def _has_ended(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _kill(pid: int) -> None:
    """The worker and the processes that it started."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


__all__ = ["Zygote", "fate", "run"]
