"""Which branches a case takes in the source of its implementation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from types import FrameType
from typing import Any

OUT = -1  # where a function returns to

Arcs = AbstractSet[tuple[str, int, int]]
"""(file, a line, the line that ran next in the same call); `OUT` for a return."""


def arcs_of(body: Callable[[], object], files: set[str]) -> Arcs:
    """Runs `body` and says what was taken, line by line, in functions of these files. What it raises goes on up."""
    arcs: set[tuple[str, int, int]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if file not in files:
            return None
        last = frame.f_lineno

        def local(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "line":
                arcs.add((file, last, frame.f_lineno))
                last = frame.f_lineno
            elif event == "return":
                arcs.add((file, last, OUT))
            return local

        return local

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        body()
    finally:
        sys.settrace(before)
    return arcs
