"""The parent's side: cases go out, outcomes come back in the order of the cases, whatever becomes of a worker.

Nothing here waits for a worker without a deadline: what it says is taken as it comes, and what it is given is sent as it takes
it. A worker has a second case while it is at work on the first, so that it need not wait while the parent draws the next.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence

from capfuzz.differential import OUT_OF_MEMORY, Outcome, Verdict
from capfuzz.targets import Case, Subject
from capfuzz.targets.mending import Mended
from capfuzz.targets.op_trace import OpTrace
from capfuzz.workers.errors import JudgeFailed, WorkerError
from capfuzz.workers.handle import Ticket, Worker
from capfuzz.workers.last_words import blame_of, last_lines
from capfuzz.workers.memory import share
from capfuzz.workers.wire import (
    Answer,
    Defect,
    MendAnswer,
    MendRequest,
    NotStarted,
    Ready,
    Seen,
    Traced,
    TraceRequest,
    WorkerSpec,
)
from capfuzz.workers.zygote import Zygote, fate

LOOK_SECONDS = 0.05  # how often time and memory are looked at
PAUSE_SECONDS = 1.0  # a parent that has not looked for longer was stopped, perhaps with its workers
GRACE_SECONDS = 1.0  # between the end of a connection and that of its process
AHEAD = 256  # cases that may be done or at work behind one that is not
_TRIES = 2


class WorkerPool:
    """Judges cases in `count` workers; a worker that dies costs its case a verdict, and nothing else. A context manager.

    Raises `WorkerError` if the first worker cannot start.
    """

    def __init__(self, subject: Subject, device: str, count: int = 1, case_seconds: float = 10.0) -> None:
        self.name = device
        self._subject = subject
        self._count = count
        self._case_seconds = case_seconds
        self._fed: deque[Ticket] = deque()
        self._waiting: deque[Ticket] = deque()
        self._workers: list[Worker] = []
        self._by_file: dict[int, Worker] = {}
        self._poll = select.poll()
        self._zygote: Zygote | None = None
        self._describes = ""
        self._looked = self._watched = time.monotonic()

    def __enter__(self) -> WorkerPool:
        self._memory_share = share(self._count)
        try:
            self._zygote = Zygote()
            for number in range(self._count):
                self._workers.append(self._started(number))
            while not self._workers[0].is_ready:
                self._look()
        except OSError as error:
            self.__exit__()
            raise WorkerError(f"no worker can be started: {error}", by_user=True) from error
        except BaseException:
            self.__exit__()
            raise
        self._describes = self._workers[0].describes
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        if self._zygote is not None:
            self._zygote.close()

    def describe(self) -> str:
        return self._describes if self._count == 1 else f"{self._describes}, {self._count} workers"

    # -- judging -------------------------------------------------------------------------------------------------------

    def judge(self, case: Case, only: str | None = None, seconds: float | None = None) -> Outcome:
        return self._done(self._ticket(case, only, seconds)).result()

    def trace(self, case: Case, seconds: float | None = None) -> OpTrace:
        ticket = self._ticket(case, None, seconds)
        ticket.other = TraceRequest(case)
        self._done(ticket)
        return ticket.trace if ticket.trace is not None else OpTrace([], ticket.result())

    def mend(self, cases: Sequence[Case], seconds: float) -> Mended | None:
        asked = MendRequest(tuple(cases), seconds)
        ticket = self._done(Ticket(cases[0], None, seconds + GRACE_SECONDS, other=asked))
        if ticket.failure is not None:
            raise ticket.failure
        return None if ticket.mend is None else ticket.mend.mended  # None: the worker was lost

    def feed(self, case: Case, seconds: float | None = None) -> Iterator[tuple[Case, Outcome]]:
        ticket = self._ticket(case, None, seconds)
        self._fed.append(ticket)
        self._give(ticket)
        while len(self._fed) > AHEAD and not self._fed[0].is_done:
            self._look()
        self._look(wait=False)
        yield from self._finished()

    def drain(self, begun_only: bool = False) -> Iterator[tuple[Case, Outcome]]:
        if begun_only:
            begun = {worker.tickets[0] for worker in self._workers if worker.tickets}
            while self._fed and not (self._fed[-1].is_done or self._fed[-1] in begun):
                self._fed.pop()
        while self._fed:
            while not self._fed[0].is_done:
                self._look()
            yield from self._finished()

    def known(self) -> Iterator[tuple[Case, Outcome]]:
        for ticket in self._fed:
            outcome = ticket.outcome or ticket.seen
            if outcome is not None:
                yield ticket.case, outcome

    def _finished(self) -> Iterator[tuple[Case, Outcome]]:
        while self._fed and self._fed[0].is_done:
            ticket = self._fed.popleft()
            yield ticket.case, ticket.result()

    def _done(self, ticket: Ticket) -> Ticket:
        """Hands a ticket out and waits for what becomes of it."""
        self._give(ticket)
        while not ticket.is_done:
            self._look()
        return ticket

    def _ticket(self, case: Case, only: str | None, seconds: float | None) -> Ticket:
        return Ticket(case, only, self._case_seconds if seconds is None else min(seconds, self._case_seconds))

    # -- handing out ---------------------------------------------------------------------------------------------------

    def _give(self, ticket: Ticket) -> None:
        """Hands a case to a worker, as soon as one has room: they may all be busy, or starting again."""
        self._waiting.append(ticket)
        self._hand_out()
        while self._waiting:
            self._look()

    def _hand_out(self) -> None:
        while self._waiting:
            worker = self._cold_worker() if self._waiting[0].case.schedule.is_cold else self._free_worker()
            if worker is None:
                return
            worker.give(self._waiting.popleft())
            self._listen_to(worker)

    def _free_worker(self) -> Worker | None:
        free = [worker for worker in self._workers if worker.has_room]
        return min(free, key=lambda each: len(each.tickets)) if free else None

    def _cold_worker(self) -> Worker | None:
        """A worker in which nothing of the implementation has run yet; one that has judged cases is replaced."""
        idle = [worker for worker in self._workers if worker.is_ready and not worker.tickets]
        cold = [worker for worker in idle if not worker.judged]
        if cold or not idle:
            return cold[0] if cold else None
        if all(worker.is_ready for worker in self._workers):  # one at a time
            self._replace(idle[0])
        return None

    def _take_back(self, worker: Worker) -> None:
        """What a lost worker has not begun: the next one takes it, before anything else."""
        self._waiting.extendleft(reversed(worker.tickets))
        worker.tickets.clear()

    # -- watching ------------------------------------------------------------------------------------------------------

    def _look(self, wait: bool = True) -> None:
        """Takes what the workers say, waiting a moment for it, and ends those that are over their time or memory."""
        heard = {self._by_file[file] for file, _ in self._poll.poll(LOOK_SECONDS * 1000 if wait else 0)}
        for worker in heard:
            if worker in self._workers:  # and not lost since
                self._attend(worker)
        now = time.monotonic()
        if now - self._looked > PAUSE_SECONDS:
            for worker in self._workers:
                worker.deadline += now - self._looked
        self._looked = now
        if now - self._watched > LOOK_SECONDS:
            self._watched = now
            for worker in list(self._workers):
                self._watch(worker, now, worker in heard)
        self._hand_out()

    def _attend(self, worker: Worker) -> None:
        worker.outbox.flush()
        try:
            for message in worker.hear():
                self._take(worker, message)
                if worker not in self._workers:
                    return
        except EOFError:
            self._lost(worker)
            return
        if worker.has_ended:
            self._lost(worker)
            return
        self._listen_to(worker)

    def _take(self, worker: Worker, message: object) -> None:
        if isinstance(message, Ready):
            worker.begins(message.describes)
        elif isinstance(message, NotStarted):
            raise WorkerError(message.text, message.by_user)
        elif isinstance(message, Seen):
            worker.seen(message.outcome)
        else:
            ticket = worker.done()
            if ticket is None:
                return
            if isinstance(message, Defect):
                ticket.failure = JudgeFailed(ticket.case, message.error, message.traceback)
            elif isinstance(message, Traced):
                ticket.trace = message.trace
            elif isinstance(message, MendAnswer):
                ticket.mend = message
            else:
                assert isinstance(message, Answer)
                ticket.outcome = message.outcome
            if message.last:
                self._replace(worker)

    def _watch(self, worker: Worker, now: float, is_heard: bool) -> None:
        """Whatever it says, a worker may be greedy; but one that is just saying something does not hang."""
        worker.cut_output()
        if worker.waits and now > worker.deadline and not is_heard:
            self._hangs(worker)
        elif self._memory_share and worker.is_ready and worker.taken() > self._memory_share:
            self._is_greedy(worker)

    # -- losing a worker -----------------------------------------------------------------------------------------------

    def _hangs(self, worker: Worker) -> None:
        if not worker.is_ready:
            raise WorkerError(f"a worker did not start in time{_said(worker)}", by_user=False)
        if not worker.has_begun:
            self._again(worker)
            return
        worker.dump_stack()
        seconds = worker.tickets[0].seconds
        self._fault(worker, Verdict.HANG, f"no end after {seconds:g} s")
        self._replace(worker)

    def _is_greedy(self, worker: Worker) -> None:
        # What a worker holds adds up over its cases. A case is to blame only if a fresh worker shows the same.
        if not worker.has_begun or worker.judged:
            self._again(worker)
            return
        worker.dump_stack()
        text = f"the process took more than {self._memory_share >> 20} MiB"
        self._fault(worker, Verdict.CRASH, text, OUT_OF_MEMORY)
        self._replace(worker)

    def _lost(self, worker: Worker) -> None:
        """A worker that has ended by itself, or hung up."""
        ended = worker.end(GRACE_SECONDS)
        status = 0 if ended.status is None else ended.status
        text = f"the process ended: {fate(status)}" if ended.by_itself else "the process closed its connection to capfuzz"
        if not worker.is_ready:
            raise WorkerError(f"a worker ended while it started: {fate(status)}{_said(worker)}", by_user=False)
        if worker.has_begun:
            self._fault(worker, Verdict.CRASH, text)
            self._replace(worker, has_ended=True)
        else:
            self._again(worker, has_ended=True)

    def _fault(self, worker: Worker, verdict: Verdict, text: str, cause: str | None = None) -> None:
        ticket = worker.tickets.popleft()
        ticket.outcome = ticket.seen or Outcome(verdict, cause, text, blame_of(worker.stack))

    def _again(self, worker: Worker, has_ended: bool = False) -> None:
        """A worker that is lost through no fault of the case that it has: another one gets it, but not without end."""
        if worker.tickets:
            worker.tickets[0].tries += 1
            if worker.tickets[0].tries > _TRIES:
                raise WorkerError("workers end before they can judge a case", by_user=False)
        self._replace(worker, has_ended)

    def _replace(self, worker: Worker, has_ended: bool = False) -> None:
        self._take_back(worker)
        self._forget(worker)
        if not has_ended:
            worker.end()
        worker.close()
        place = self._workers.index(worker)
        self._workers[place] = self._started(worker.spec.number)

    def _started(self, number: int) -> Worker:
        assert self._zygote is not None
        spec = WorkerSpec(self._subject.target.name, self._subject.label, self.name, number)
        worker = Worker(self._zygote, spec)
        self._by_file[worker.connection.fileno()] = worker
        self._listen_to(worker)
        if worker.process_file is not None:
            self._by_file[worker.process_file] = worker
            self._poll.register(worker.process_file, select.POLLIN)
        return worker

    def _listen_to(self, worker: Worker) -> None:
        self._poll.register(worker.connection, select.POLLIN | (select.POLLOUT if worker.outbox.waits else 0))

    def _forget(self, worker: Worker) -> None:
        for file in (worker.connection.fileno(), worker.process_file):
            if file is not None:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(file)
                self._by_file.pop(file, None)


def _said(worker: Worker) -> str:
    said = last_lines(worker.output)
    return f", after it had said:\n{said}" if said else ""
