"""What can go wrong with workers, other than what the implementation under test does to them."""

from __future__ import annotations

from capfuzz.targets import Case


class WorkerError(RuntimeError):
    """A worker could not start. `by_user`: for a reason that the user can mend."""

    def __init__(self, text: str, by_user: bool) -> None:
        super().__init__(text)
        self.by_user = by_user


class JudgeFailed(RuntimeError):
    """capfuzz itself failed on a case. `error` is what was raised, `traceback` that one's: both as text, for it was raised in
    another process."""

    def __init__(self, case: Case, error: str, traceback: str) -> None:
        super().__init__(error)
        self.case = case
        self.traceback = traceback
