"""The op trace: which user line launched which op, the same code on every device.

A location is kept as (code object, line number), which costs two attribute reads an op; the file is opened only for a
location that is reported.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch

_TORCH_DIR = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DIFFERENTIAL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "differential") + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_SITE = os.path.join(_STDLIB, "site-packages")
_internal: dict[str, bool] = {}  # by file


class Location(NamedTuple):
    """Where user code launched an op."""

    code: CodeType
    line: int

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def function(self) -> str:
        return self.code.co_name

    @property
    def text(self) -> str:
        return linecache.getline(self.code.co_filename, self.line).strip()

    def __reduce__(self) -> tuple[type[SourceLocation], tuple[str, int, str, str]]:
        return SourceLocation, (self.file, self.line, self.function, self.text)


class SourceLocation(NamedTuple):
    """A location as another process knows it: without the code itself."""

    file: str
    line: int
    function: str
    text: str


def is_user_file(file: str) -> bool:
    return not _is_internal(file)


_new_tuple = tuple.__new__  # a third of what `Location(...)` costs, and recording an op pays it each time


def _is_internal(file: str) -> bool:
    known = _internal.get(file)
    if known is None:
        stdlib = file.startswith(_STDLIB) and not file.startswith(_SITE)
        known = _internal[file] = stdlib or file.startswith((_TORCH_DIR, _HERE, _DIFFERENTIAL, "<frozen"))
    return known


def here(frame: FrameType | None = None) -> Location | None:
    """The innermost frame that is user code: neither PyTorch's, the standard library's nor the device's own.

    Looked for from `frame` outwards, or from the caller.
    """
    if frame is None:
        frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        internal = _internal.get(code.co_filename)  # looked up here: recording an op pays for a call each time
        if internal is False or (internal is None and not _is_internal(code.co_filename)):
            return _new_tuple(Location, (code, frame.f_lineno))
        frame = frame.f_back
    return None


def caller(code: CodeType, depth: int = 1) -> Location | None:
    """Where the innermost running call of `code` is: the line of the implementation below which an op was launched."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if frame.f_code is code:
            return Location(code, frame.f_lineno)
        frame = frame.f_back
    return None


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code of a function, of what `functools.partial` or a decorator wraps, or of an object's `__call__`."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def blamed(error: BaseException) -> Location | None:
    """The innermost user line of an exception's traceback."""
    found: Location | None = None
    tb: TracebackType | None = error.__traceback__
    while tb is not None:
        if not _is_internal(tb.tb_frame.f_code.co_filename):
            found = Location(tb.tb_frame.f_code, tb.tb_lineno)
        tb = tb.tb_next
    return found


class Operand(NamedTuple):
    """A tensor that an op read or wrote, as far as a trace tells: `device` is the type, `cuda` or `cpu`."""

    dtype: str
    shape: tuple[int, ...]
    device: str


@dataclass(slots=True)
class OpRecord:
    """One op that was launched: its name, the user's line, what it read and wrote, and the values that it left behind.

    `kind` is `kernel` (recorded in the graph), `copy` (the same, between host and device), `alloc` (memory only), `view`
    (neither); in the trace of a capture also `host` (it ran on the host) and `at once` (it ran on a stream outside of it).
    `storages` are the ids of the storages that it wrote, made or looked at; `values` are host copies of what it wrote, empty
    unless asked for. `outer` is the line of the implementation itself below which the op was launched, where that was asked
    for. `baked` are the host's values that the graph keeps as they were at capture: numbers, or lists of them.
    """

    op: str
    location: Location | None
    kind: str = "kernel"
    storages: tuple[int, ...] = ()
    values: list[np.ndarray] = field(default_factory=list)
    baked: tuple[Any, ...] = ()
    outer: Location | None = None
    read: tuple[Operand, ...] = ()
    written: tuple[Operand, ...] = ()

    @property
    def fate(self) -> str:
        """What became of the op at capture: `recorded`, `baked`, or its kind where the graph has no node of it."""
        if self.kind in ("kernel", "copy"):
            return "baked" if self.baked else "recorded"
        return self.kind
