"""What the check says of one case."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from capfuzz.devices.errors import Rule
from capfuzz.devices.trace import Location, SourceLocation


class Verdict(str, Enum):
    EQUIVALENT = "equivalent"
    CAPTURE_ERROR = "capture_error"
    REPLAY_ERROR = "replay_error"
    DIVERGENCE = "divergence"
    DANGLING_BUFFER = "dangling_buffer"
    REFERENCE_MISMATCH = "reference_mismatch"
    INVARIANT = "invariant"
    NONDETERMINISTIC = "nondeterministic"
    EAGER_ERROR = "eager_error"
    CRASH = "crash"
    HANG = "hang"


class Cause(str, Enum):
    """Why a replay diverges."""

    STALE_HOST_VALUE = "stale_host_value"
    UNWRITTEN_OUTPUT = "unwritten_output"
    NOT_IDEMPOTENT = "not_idempotent"
    HOST_STATE = "host_state"
    OUT_OF_BOUNDS = "out_of_bounds"
    ALIASED_OUTPUT = "aliased_output"
    SHAPE = "shape"
    DTYPE = "dtype"
    STRUCTURE = "structure"
    VALUES = "values"


OUT_OF_MEMORY = "out_of_memory"
"""The cause of a crash that is known: the process held all that it may. Other crashes have none."""


@dataclass(frozen=True)
class Mismatch:
    """The first difference between two runs: which observable, at which indices, and what each side holds.

    `where` names the run ("replay 2 (changed inputs 1)"), `path` the observable ("output", "buffer indptr").
    """

    where: str
    path: str
    expected_name: str
    actual_name: str
    expected: np.ndarray | str
    actual: np.ndarray | str
    captured: np.ndarray | None = None
    note: str = ""

    def indices(self, most: int = 4) -> list[tuple[int, ...]]:
        """The first differing positions; empty where the two are not arrays of one shape."""
        if isinstance(self.expected, str) or isinstance(self.actual, str) or self.expected.shape != self.actual.shape:
            return []
        return [tuple(int(i) for i in at) for at in np.argwhere(self.expected != self.actual)[:most]]


@dataclass(frozen=True)
class Blame:
    """The guilty line and the op that it lowered to."""

    location: Location | SourceLocation | None
    op: str | None


@dataclass(frozen=True)
class Outcome:
    """The verdict of one case, with what a person needs to believe it."""

    verdict: Verdict
    cause: str | None = None
    message: str = ""
    blame: Blame = field(default_factory=lambda: Blame(None, None))
    mismatch: Mismatch | None = None

    @property
    def is_fault(self) -> bool:
        return self.verdict is not Verdict.EQUIVALENT

    @property
    def label(self) -> str:
        """`capture_error:host_copy`, or the bare verdict where it has no cause."""
        return f"{self.verdict.value}:{self.cause}" if self.cause else self.verdict.value


EQUIVALENT = Outcome(Verdict.EQUIVALENT)
__all__ = ["EQUIVALENT", "OUT_OF_MEMORY", "Blame", "Cause", "Mismatch", "Outcome", "Rule", "Verdict"]
