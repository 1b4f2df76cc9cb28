"""Who says of a case what its outcome is."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from typing import Protocol

from capfuzz.devices import Device
from capfuzz.differential import Outcome
from capfuzz.targets import Case, Subject
from capfuzz.targets.judge import judge
from capfuzz.targets.mending import Mended, mend
from capfuzz.targets.op_trace import OpTrace, trace_case
from capfuzz.workers.errors import JudgeFailed


class Judge(Protocol):
    """Judges cases: one at once, or many that come back in their order. Raises `JudgeFailed` and `WorkerError`."""

    name: str
    """The device's name."""

    def describe(self) -> str: ...

    def judge(self, case: Case, only: str | None = None, seconds: float | None = None) -> Outcome:
        """The outcome of one case, now. With `only`, a fault with another label is not explained; `seconds`: how long it may
        take, where the judge has a limit, which is never raised."""
        ...

    def trace(self, case: Case, seconds: float | None = None) -> OpTrace:
        """The ops of a case's capture; where they cost the judge its process, none, and that outcome as the error. `seconds` as
        in `judge`."""
        ...

    def mend(self, cases: Sequence[Case], seconds: float) -> Mended | None:
        """The edit that mends these cases, the first of which fails; None where none is found in so many seconds, or the search
        cost the judge its process."""
        ...

    def feed(self, case: Case, seconds: float | None = None) -> Iterator[tuple[Case, Outcome]]:
        """Takes a case; yields the outcomes that are known by then, in the order of the cases."""
        ...

    def drain(self, begun_only: bool = False) -> Iterator[tuple[Case, Outcome]]:
        """Yields what is still out, in the order of the cases. With `begun_only` only up to the last case that somebody is
        at work on; what was not begun is dropped."""
        ...

    def known(self) -> Iterator[tuple[Case, Outcome]]:
        """Yields what is known and was not yielded: a slower case was in front of it, or its line was not found yet. Waits for
        nothing."""
        ...


class InProcess:
    """A judge in this process: nothing protects it."""

    def __init__(self, device: Device, subject: Subject) -> None:
        self._device = device
        self._subject = subject
        self.name = device.name
        self._seen: list[tuple[Case, Outcome]] = []

    def describe(self) -> str:
        return self._device.describe()

    def judge(self, case: Case, only: str | None = None, seconds: float | None = None) -> Outcome:
        with _named(case):
            return judge(self._device, self._subject, case, only)

    def trace(self, case: Case, seconds: float | None = None) -> OpTrace:
        with _named(case):
            return trace_case(self._device, self._subject, case)

    def mend(self, cases: Sequence[Case], seconds: float) -> Mended | None:
        with _named(cases[0]):
            return mend(self._subject, cases, seconds)

    def feed(self, case: Case, seconds: float | None = None) -> Iterator[tuple[Case, Outcome]]:
        with _named(case):
            outcome = judge(self._device, self._subject, case, None, lambda fault: self._seen.append((case, fault)))
        self._seen.clear()
        yield case, outcome

    def drain(self, begun_only: bool = False) -> Iterator[tuple[Case, Outcome]]:
        yield from ()

    def known(self) -> Iterator[tuple[Case, Outcome]]:
        yield from self._seen


@contextlib.contextmanager
def _named(case: Case) -> Iterator[None]:
    """What fails in capfuzz itself names the case that it failed on."""
    try:
        yield
    except Exception as error:
        raise JudgeFailed(case, f"{type(error).__name__}: {error}", traceback.format_exc()) from error
