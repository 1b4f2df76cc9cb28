"""Messages between the parent, the zygote and the workers: pickled, each behind its length. Both ends are our own processes."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from capfuzz.differential import Outcome
from capfuzz.targets import Case

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is to be: names only, so that a worker of any kind can look them up. `number` picks its GPU."""

    target: str
    implementation: str
    device: str
    number: int


@dataclass(frozen=True)
class Request:
    """One case; `only`: the label that it must have to be explained."""

    case: Case
    only: str | None = None


@dataclass(frozen=True)
class Ready:
    describes: str


@dataclass(frozen=True)
class NotStarted:
    """The worker could not begin: what was raised, as text, and whether the user can mend it."""

    text: str
    by_user: bool


@dataclass(frozen=True)
class Answer:
    """The outcome of a case. `last`: the worker has lost its device, and ends."""

    outcome: Outcome
    last: bool = False


@dataclass(frozen=True)
class Defect:
    """capfuzz itself failed on the case."""

    text: str


def send(connection: socket.socket, message: Any) -> None:
    data = pickle.dumps(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next message. Raises `EOFError` when the other side has gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        try:
            part = connection.recv(min(size, 1 << 20))
        except ConnectionError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
