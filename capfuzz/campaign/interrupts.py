"""Ctrl-C that is not lost.

Python drops an exception that a signal handler raises inside a finaliser or a garbage collection callback, and user code may
catch it. The handler here remembers instead, and the campaign asks before each case.
"""

from __future__ import annotations

import gc
import signal
import threading
from types import FrameType


def _would_be_dropped(frame: FrameType | None) -> bool:
    """Whether Python would print an exception that is raised here and go on: in a finaliser or a collector's callback."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


class Interrupts:
    """A context manager for the main thread; in another thread, or under a handler of the caller's own, it does nothing."""

    def __init__(self) -> None:
        self._seen = False
        self._installed = False

    def __enter__(self) -> Interrupts:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *exc: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        if not _would_be_dropped(frame):
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raises `KeyboardInterrupt` if there was one, whatever became of it. It is raised once."""
        if self._seen:
            self._seen = False
            raise KeyboardInterrupt
