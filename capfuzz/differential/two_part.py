"""Implementations that prepare on the host outside the graph, before capture and before every replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Mode(str, Enum):
    """What a preparation is for. An engine may take another path for capture than for replay."""

    EAGER = "eager"
    CAPTURE = "capture"
    REPLAY = "replay"


@dataclass(frozen=True)
class TwoPart:
    """`prepare(mode, **arguments)` runs outside the graph; `body(prepared, **arguments)` is what is captured.

    Both are called with the feed's names as keywords. At replay only `prepare` runs; the graph does the rest.
    """

    prepare: Callable[..., Any]
    body: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return getattr(self.body, "__name__", "body")

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.body.__doc__
