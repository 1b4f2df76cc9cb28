"""Implementations that capture and replay by themselves, as an engine's graph runner does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Runner:
    """`eager(**arguments)` gives the answer; `make()` gives a callable that answers the same calls through graphs of its own.

    What `make` returns is called with the inputs of one step after another, in new buffers each time, and may be called for
    another bucket or another value in between. It owns its static buffers, its graphs and the key that it finds them by. An
    argument that `is_state` is the same buffer in every call; what the two leave in it is compared.
    """

    eager: Callable[..., Any]
    make: Callable[[], Callable[..., Any]]
    may_hold: bool = True
    """Whether a caller may hold an answer over the next call. False where answers are documented to be the static buffers."""

    @property
    def __name__(self) -> str:
        return getattr(self.make, "__name__", "runner")

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.make.__doc__
