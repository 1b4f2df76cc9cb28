"""Messages between the parent, the zygote and the workers: pickled, each behind its length. Both ends are our own processes."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from capfuzz.differential import Outcome
from capfuzz.targets import Case
from capfuzz.targets.mending import Mended
from capfuzz.targets.op_trace import OpTrace

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 20


# -- to the zygote and back --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is to be: names only, so that a worker of any kind can look them up. `number` picks its GPU."""

    target: str
    implementation: str
    device: str
    number: int


@dataclass(frozen=True)
class Begun:
    """The process id of a worker that was asked for."""

    pid: int


@dataclass(frozen=True)
class End:
    """Asks for the end of a worker, which has so long to come to it by itself."""

    pid: int
    seconds: float


@dataclass(frozen=True)
class Ended:
    """A worker's exit status, negative for a signal; None if it does not even end when it is killed. `by_itself`: it was not
    killed by us."""

    status: int | None
    by_itself: bool


# -- to a worker and back ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One case; `only`: the label that it must have to be explained."""

    case: Case
    only: str | None = None


@dataclass(frozen=True)
class TraceRequest:
    """Asks for the op trace of one case's capture."""

    case: Case


@dataclass(frozen=True)
class MendRequest:
    """Asks for an edit that mends these cases, the first of which fails; the worker ends with its answer."""

    cases: tuple[Case, ...]
    seconds: float


@dataclass(frozen=True)
class Ready:
    describes: str


@dataclass(frozen=True)
class NotStarted:
    """The worker could not begin: what was raised, as text, and whether the user can mend it."""

    text: str
    by_user: bool


@dataclass(frozen=True)
class Seen:
    """A fault whose line is still searched for; an answer follows."""

    outcome: Outcome


@dataclass(frozen=True)
class Answer:
    """The outcome of a case. `last`: the worker has lost its device, and ends."""

    outcome: Outcome
    last: bool = False


@dataclass(frozen=True)
class Traced:
    """The op trace of a case; `last` as in `Answer`."""

    trace: OpTrace
    last: bool = False


@dataclass(frozen=True)
class MendAnswer:
    """What mends the cases, if anything does; `last` as in `Answer`."""

    mended: Mended | None
    last: bool = True


@dataclass(frozen=True)
class Defect:
    """capfuzz itself failed on the case: what was raised, and the traceback as text; `last`: the worker ends."""

    error: str
    traceback: str
    last: bool = False


# -- how they travel ---------------------------------------------------------------------------------------------------


def packed(message: Any) -> bytes:
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


def send(connection: socket.socket, message: Any) -> None:
    connection.sendall(packed(message))


def receive(connection: socket.socket) -> Any:
    """Waits for the next message. Raises `EOFError` when the other side has gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        try:
            part = connection.recv(min(size, _CHUNK))
        except ConnectionError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Inbox:
    """Takes what has come on a connection without ever waiting for the rest: who sends may die, or stop, in mid-message."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def receive(self) -> Iterator[Any]:
        """The messages that are complete. Raises `EOFError` behind the last one when the other side has gone."""
        gone = False
        while not gone:
            try:
                part = self._connection.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            self._data += part
            gone = not part
            if len(part) < _CHUNK and not gone:
                break
        yield from self._complete()
        if gone:
            raise EOFError

    def _complete(self) -> Iterator[Any]:
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            message = pickle.loads(memoryview(self._data)[_LENGTH.size : end])
            del self._data[:end]
            yield message


class Outbox:
    """Sends without waiting: who receives may be busy for long with the message before."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = b""
        self._broken = False

    @property
    def waits(self) -> bool:
        """Whether `flush` has something to send as soon as the connection takes it."""
        return bool(self._data) and not self._broken

    @property
    def is_sent(self) -> bool:
        """Whether the other side has been given all of every message."""
        return not self._data

    def send(self, message: Any) -> None:
        self._data += packed(message)
        self.flush()

    def flush(self) -> None:
        """Sends what can be sent now. That the other side has gone shows when it is listened to."""
        try:
            while self._data and not self._broken:
                self._data = self._data[self._connection.send(self._data, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return
        except OSError:
            self._broken = True
