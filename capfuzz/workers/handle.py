"""The parent's handle of one worker: its process, what it has been given, and until when."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from capfuzz.differential import Outcome
from capfuzz.targets import Case
from capfuzz.targets.op_trace import OpTrace
from capfuzz.workers.errors import JudgeFailed
from capfuzz.workers.memory import held_by
from capfuzz.workers.wire import Ended, Inbox, MendAnswer, MendRequest, Outbox, Request, TraceRequest, WorkerSpec
from capfuzz.workers.worker import DUMP_STACK
from capfuzz.workers.zygote import Zygote

START_SECONDS = 300.0  # a worker imports the user's module and begins to use the GPU
STACK_SECONDS = 0.5
QUEUE = 2  # cases that a worker has: one that it is at work on, one so that it need not wait for the next
_MOST_PRINTED = 16 << 20
_LOOK_SECONDS = 0.005


@dataclass(eq=False)
class Ticket:
    """A case on its way, and what became of it."""

    case: Case
    only: str | None
    seconds: float
    seen: Outcome | None = None
    """The fault, while its line is searched for."""
    outcome: Outcome | None = None
    failure: JudgeFailed | None = None
    tries: int = 0
    """Workers that were lost with it for no fault of the case."""
    other: TraceRequest | MendRequest | None = None
    """This is wanted, and no outcome; there is one all the same if the worker is lost."""
    trace: OpTrace | None = None
    mend: MendAnswer | None = None

    @property
    def is_done(self) -> bool:
        return any(each is not None for each in (self.outcome, self.failure, self.trace, self.mend))

    @property
    def request(self) -> Request | TraceRequest | MendRequest:
        return Request(self.case, self.only) if self.other is None else self.other

    def result(self) -> Outcome:
        """Raises `JudgeFailed`."""
        if self.failure is not None:
            raise self.failure
        assert self.outcome is not None
        return self.outcome


class Worker:
    """One worker process."""

    def __init__(self, zygote: Zygote, spec: WorkerSpec) -> None:
        self.spec = spec
        self._zygote = zygote
        self._files = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            self.stack: IO[bytes] = opening.enter_context(tempfile.TemporaryFile())
            self.output: IO[bytes] = opening.enter_context(tempfile.TemporaryFile())
            # The worker writes at the end, wherever that is: the file is cut from here.
            fcntl.fcntl(self.output, fcntl.F_SETFL, fcntl.fcntl(self.output, fcntl.F_GETFL) | os.O_APPEND)
            self.connection, theirs = socket.socketpair()
            opening.enter_context(self.connection)
            with theirs:
                self.pid = zygote.start(spec, theirs, self.stack.fileno(), self.output.fileno())
            self.process_file = _process_file(self.pid)
            if self.process_file is not None:
                opening.callback(os.close, self.process_file)
            self._files = opening.pop_all()
        self._inbox, self.outbox = Inbox(self.connection), Outbox(self.connection)
        self.tickets: deque[Ticket] = deque()
        self.deadline = time.monotonic() + START_SECONDS
        self.describes = ""
        self.is_ready = False
        self.judged = 0
        self._held_at_start = 0

    # -- its work ------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.is_ready and len(self.tickets) < QUEUE

    def begins(self, describes: str) -> None:
        """It is ready for cases."""
        self.describes, self.is_ready = describes, True
        self._held_at_start = held_by(self.pid)

    def give(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)
        if len(self.tickets) == 1:
            self._at_work_on(ticket)
        self.outbox.send(ticket.request)

    def done(self) -> Ticket | None:
        """The ticket that the answer which has just come is for."""
        if not self.tickets:
            return None
        ticket = self.tickets.popleft()
        self.judged += 1
        if self.tickets:
            self._at_work_on(self.tickets[0])
        return ticket

    def seen(self, outcome: Outcome) -> None:
        """What the first of its tickets shows. Searching for the line runs the case again, for as long once more."""
        if self.tickets:
            self.tickets[0].seen = outcome
            self._at_work_on(self.tickets[0])

    def _at_work_on(self, ticket: Ticket) -> None:
        self.deadline = time.monotonic() + ticket.seconds

    @property
    def has_begun(self) -> bool:
        """Whether it can be at work on the first of its tickets."""
        return bool(self.tickets) and (self.outbox.is_sent or len(self.tickets) > 1)

    @property
    def waits(self) -> bool:
        """Whether it has something to do, and so a deadline."""
        return bool(self.tickets) or not self.is_ready

    def hear(self) -> Iterator[Any]:
        """What it says. Raises `EOFError` behind the last message if it has hung up."""
        return self._inbox.receive()

    # -- its process ---------------------------------------------------------------------------------------------------

    def taken(self) -> int:
        """Bytes that it holds beyond those that it had when it was ready."""
        return held_by(self.pid) - self._held_at_start if self._held_at_start else 0

    def cut_output(self) -> None:
        """A function that prints in a loop must not fill the disk."""
        if os.fstat(self.output.fileno()).st_size > _MOST_PRINTED:
            self.output.truncate(0)

    def dump_stack(self) -> None:
        """Has the process write its stack, and waits for that: for the first line, then until nothing is added."""
        self.signal(DUMP_STACK)
        deadline = time.monotonic() + STACK_SECONDS
        size = 0
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            before, size = size, os.fstat(self.stack.fileno()).st_size
            if size and size == before:
                return

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.process_file is not None:
                signal.pidfd_send_signal(self.process_file, number)
            else:
                os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether its process is known to have ended. Its connection may be open still, in a process that it started."""
        if self.process_file is None:
            return False
        poll = select.poll()
        poll.register(self.process_file, select.POLLIN)
        return bool(poll.poll(0))

    def end(self, seconds: float = 0.0) -> Ended:
        """Ends the process if it does not end by itself in so many seconds."""
        return self._zygote.end(self.pid, seconds)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._files.close()


def _process_file(pid: int) -> int | None:
    """A file that can be read from when the process has ended: a process that it started may keep its connection open."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
