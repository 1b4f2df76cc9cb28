"""The parent's side: cases go out, outcomes come back in the order of the cases, whatever becomes of a worker."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Protocol

from capfuzz.devices import Device
from capfuzz.differential import Outcome, Verdict
from capfuzz.targets import Case, Subject
from capfuzz.targets.judge import judge
from capfuzz.workers.last_words import blame_of, last_lines
from capfuzz.workers.wire import Answer, Defect, NotStarted, Ready, Request, WorkerSpec, receive, send
from capfuzz.workers.worker import DUMP_STACK
from capfuzz.workers.zygote import Zygote

START_SECONDS = 300.0  # a worker imports the user's module and begins to use the GPU
STACK_SECONDS = 0.5
LOOK_SECONDS = 0.05
_SPARE_MEMORY = 0.5  # of what was free at the start: what one worker may take


class WorkerError(RuntimeError):
    """A worker could not start. `by_user`: for a reason that the user can mend."""

    def __init__(self, text: str, by_user: bool) -> None:
        super().__init__(text)
        self.by_user = by_user


class JudgeFailed(RuntimeError):
    """capfuzz itself failed on a case, in a worker; the text has its traceback."""


class Judge(Protocol):
    """Who says of each case what its outcome is."""

    name: str
    """The device's name."""

    def describe(self) -> str: ...

    def judge(self, case: Case, only: str | None = None, seconds: float | None = None) -> Outcome:
        """The outcome of one case, now. With `only`, a fault with another label is not explained; `seconds`: how long it may
        take, where the judge has a limit."""
        ...

    def feed(self, case: Case, seconds: float | None = None) -> Iterator[tuple[Case, Outcome]]:
        """Takes a case; yields the outcomes that are known by then, in the order of the cases."""
        ...

    def drain(self) -> Iterator[tuple[Case, Outcome]]:
        """Yields what is still out."""
        ...


class InProcess:
    """A judge in this process: nothing protects it."""

    def __init__(self, device: Device, subject: Subject) -> None:
        self._device = device
        self._subject = subject
        self.name = device.name

    def describe(self) -> str:
        return self._device.describe()

    def judge(self, case: Case, only: str | None = None, seconds: float | None = None) -> Outcome:
        return judge(self._device, self._subject, case, only)

    def feed(self, case: Case, seconds: float | None = None) -> Iterator[tuple[Case, Outcome]]:
        yield case, self.judge(case)

    def drain(self) -> Iterator[tuple[Case, Outcome]]:
        yield from ()


@dataclass
class _Ticket:
    case: Case
    outcome: Outcome | None = None


class _Worker:
    """One worker process and the case that it has."""

    def __init__(self, zygote: Zygote, spec: WorkerSpec) -> None:
        self.spec = spec
        self._zygote = zygote
        self.stack: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.pid = zygote.start(spec, theirs, self.stack.fileno(), self.output.fileno())
        self.ticket: _Ticket | None = None
        self.deadline = time.monotonic() + START_SECONDS
        self.describes = ""
        self.is_ready = False

    def begin(self, ticket: _Ticket, only: str | None, seconds: float) -> None:
        self.ticket = ticket
        self.deadline = time.monotonic() + seconds
        self.output.truncate(0)
        send(self.connection, Request(ticket.case, only))

    def memory(self) -> int:
        """Bytes that the process holds; 0 where that cannot be told."""
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    def kill(self) -> int:
        """Ends the process, if it has not ended; its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self._zygote.status_of(self.pid)

    def dump_stack(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, DUMP_STACK)
        time.sleep(STACK_SECONDS)

    def close(self) -> None:
        self.connection.close()
        self.stack.close()
        self.output.close()


class WorkerPool:
    """Judges cases in `count` workers; a worker that dies costs its case a verdict, and nothing else. A context manager.

    Raises `WorkerError` if the first worker cannot start.
    """

    def __init__(self, subject: Subject, device: str, count: int = 1, case_seconds: float = 10.0) -> None:
        self.name = device
        self._subject = subject
        self._count = count
        self._case_seconds = case_seconds
        self._tickets: deque[_Ticket] = deque()
        self._workers: list[_Worker] = []
        self._describes = ""

    def __enter__(self) -> WorkerPool:
        self._zygote = Zygote()
        self._memory_limit = int(_free_memory() * _SPARE_MEMORY / self._count)
        try:
            self._workers = [self._started(number) for number in range(self._count)]
            self._await_ready(self._workers[0])
        except BaseException:
            self.__exit__()
            raise
        self._describes = self._workers[0].describes
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.close()
        self._zygote.close()

    def describe(self) -> str:
        return self._describes if self._count == 1 else f"{self._describes}, {self._count} workers"

    # -- judging -------------------------------------------------------------------------------------------------------

    def judge(self, case: Case, only: str | None = None, seconds: float | None = None) -> Outcome:
        ticket = _Ticket(case)
        self._give(ticket, only, min(seconds or self._case_seconds, self._case_seconds))
        while ticket.outcome is None:
            self._look()
        return ticket.outcome

    def feed(self, case: Case, seconds: float | None = None) -> Iterator[tuple[Case, Outcome]]:
        ticket = _Ticket(case)
        self._tickets.append(ticket)
        self._give(ticket, None, min(seconds or self._case_seconds, self._case_seconds))
        yield from self._finished()

    def drain(self) -> Iterator[tuple[Case, Outcome]]:
        while self._tickets:
            while self._tickets[0].outcome is None:
                self._look()
            yield from self._finished()

    def _finished(self) -> Iterator[tuple[Case, Outcome]]:
        while self._tickets and self._tickets[0].outcome is not None:
            ticket = self._tickets.popleft()
            assert ticket.outcome is not None
            yield ticket.case, ticket.outcome

    def _give(self, ticket: _Ticket, only: str | None, seconds: float) -> None:
        while True:
            for worker in self._workers:
                if worker.is_ready and worker.ticket is None:
                    worker.begin(ticket, only, seconds)
                    return
            self._look()

    # -- watching ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Waits a moment for any worker, takes what it says, and ends those that are over their time or memory."""
        busy = {worker.connection: worker for worker in self._workers if worker.ticket is not None or not worker.is_ready}
        readable, _, _ = select.select(list(busy), [], [], LOOK_SECONDS)
        for connection in readable:
            self._hear(busy[connection])
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.connection in readable or worker.connection not in busy:
                continue
            if now > worker.deadline:
                self._lost(worker, hangs=True)
            elif self._memory_limit and worker.memory() > self._memory_limit:
                self._lost(worker, greedy=True)

    def _hear(self, worker: _Worker) -> None:
        try:
            message = receive(worker.connection)
        except (EOFError, OSError):
            self._lost(worker)
            return
        if isinstance(message, Ready):
            worker.describes, worker.is_ready = message.describes, True
        elif isinstance(message, Answer):
            assert worker.ticket is not None
            worker.ticket.outcome, worker.ticket = message.outcome, None
            if message.last:
                self._replace(worker)
        elif isinstance(message, NotStarted):
            raise WorkerError(message.text, message.by_user)
        else:
            assert isinstance(message, Defect)
            raise JudgeFailed(message.text)

    def _lost(self, worker: _Worker, hangs: bool = False, greedy: bool = False) -> None:
        """The outcome of the case that a worker had when it was lost."""
        if hangs or greedy:
            worker.dump_stack()
        status = worker.kill()
        if worker.ticket is None:
            said = last_lines(worker.output) or f"exit status {status}"
            raise WorkerError(
                f"a worker {'did not start in time' if hangs else 'ended while it started'}: {said}", by_user=False
            )
        blame = blame_of(worker.stack)
        if hangs:
            outcome = Outcome(Verdict.HANG, None, f"no end after {self._case_seconds:g} s", blame)
        elif greedy:
            text = f"out of memory: the process held more than {self._memory_limit >> 20} MiB"
            outcome = Outcome(Verdict.CRASH, None, text, blame)
        else:
            outcome = Outcome(Verdict.CRASH, None, _ended(status), blame)
        worker.ticket.outcome = outcome
        self._replace(worker, ended=True)

    def _replace(self, worker: _Worker, ended: bool = False) -> None:
        if not ended:
            worker.kill()
        worker.close()
        self._workers[self._workers.index(worker)] = self._started(worker.spec.number)

    def _started(self, number: int) -> _Worker:
        spec = WorkerSpec(self._subject.target.name, self._subject.label, self.name, number)
        return _Worker(self._zygote, spec)

    def _await_ready(self, worker: _Worker) -> None:
        while not worker.is_ready:
            self._look()


def _ended(status: int) -> str:
    if status < 0:
        return f"the process was killed by {signal.Signals(-status).name}"
    return f"the process ended with exit status {status}"


def _free_memory() -> int:
    """Bytes; 0 where that cannot be told."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


__all__ = ["InProcess", "Judge", "JudgeFailed", "WorkerError", "WorkerPool"]
