"""What a campaign says while it runs. Handlers print, count or write reports; no output code lives in the engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from capfuzz.campaign.stats import Drawn
from capfuzz.findings import Finding
from capfuzz.targets.op_trace import OpTrace


@dataclass(frozen=True)
class Started:
    target: str
    implementation: str
    device: str
    engine: str
    seed: int | None
    max_examples: int | None
    max_time: float | None


@dataclass(frozen=True)
class Progress:
    cases: int
    seconds: float
    findings: int


@dataclass(frozen=True)
class Minimising:
    label: str


@dataclass(frozen=True)
class Found:
    """A finding. `path` is its entry, None when nothing is saved; `is_new` is False when the corpus had it already.

    `problem` says why it could not be saved, `note` what it lacks: it was interrupted, or time ran out. `trace` is the op trace
    of its case, or why there is none; None where nobody asked for one.
    """

    finding: Finding
    path: Path | None
    is_new: bool
    problem: str | None = None
    note: str | None = None
    trace: OpTrace | str | None = None


@dataclass(frozen=True)
class Finished:
    """The end of a campaign. `interrupted`: before its own, by Ctrl-C or by an error; `failure` is that error."""

    cases: int
    seconds: float
    findings: int
    coverage: dict[str, list[int | str]] = field(default_factory=dict)
    exhausted: bool = False
    interrupted: bool = False
    drawn: Drawn | None = None
    """How often each value was drawn, where that was asked for."""
    failure: str | None = None


Event = Started | Progress | Minimising | Found | Finished
Handler = Callable[[Event], None]
