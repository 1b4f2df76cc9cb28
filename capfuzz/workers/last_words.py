"""What a lost worker left: its stack, as `faulthandler` writes it, and the end of what it printed."""

from __future__ import annotations

import linecache
import os
import re
from typing import IO

from capfuzz.devices.trace import SourceLocation, is_user_file
from capfuzz.differential import Blame

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TARGETS = os.path.join(_OURS, "targets") + os.sep


def blame_of(stack: IO[bytes]) -> Blame:
    """The innermost line of user code on the stack, if there is one."""
    stack.seek(0)
    for line in stack.read().decode(errors="replace").splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            continue
        file = frame["file"]
        if is_user_file(file) and (not file.startswith(_OURS) or file.startswith(_TARGETS)) and not file.endswith("judge.py"):
            text = linecache.getline(file, int(frame["line"])).strip()
            return Blame(SourceLocation(file, int(frame["line"]), frame["function"], text), None)
    return Blame(None, None)


def last_lines(output: IO[bytes], most: int = 5) -> str:
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").strip().splitlines()[-most:])
