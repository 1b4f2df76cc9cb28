"""What a lost worker left: its stack, as `faulthandler` writes it, and the end of what it printed."""

from __future__ import annotations

import linecache
import os
import re
from typing import IO

from capfuzz.devices.trace import SourceLocation, is_user_file
from capfuzz.differential import Blame
from capfuzz.targets import judge as judge_module

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TARGETS = os.path.join(_OURS, "targets") + os.sep
_END = 1 << 14


def blame_of(stack: IO[bytes]) -> Blame:
    """The innermost line of user code on the stack, if there is one."""
    stack.seek(0)
    for line in stack.read().decode(errors="replace").splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            continue
        file, function = _plain(frame["file"]), _plain(frame["function"])
        if _is_blamed(file):
            text = linecache.getline(file, int(frame["line"])).strip()
            return Blame(SourceLocation(file, int(frame["line"]), function, text), None)
    return Blame(None, None)


def _is_blamed(file: str) -> bool:
    """Code under test: the user's, or a target's own."""
    if file.startswith(_OURS) and (not file.startswith(_TARGETS) or file == judge_module.__file__):
        return False
    return is_user_file(file)


def _plain(name: str) -> str:
    """`faulthandler` escapes whatever is not ASCII."""
    return _ESCAPED.sub(lambda escaped: chr(int(escaped[0][2:], 16)), name)


def last_lines(output: IO[bytes], most: int = 5) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _END))
    return "\n".join(output.read().decode(errors="replace").strip().splitlines()[-most:])
