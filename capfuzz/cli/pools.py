"""A worker pool for each implementation that a verb meets."""

from __future__ import annotations

from contextlib import ExitStack

from capfuzz.cli.errors import worker_failed
from capfuzz.targets import Subject
from capfuzz.workers import WorkerError, WorkerPool


class Pools:
    """Opens a pool when an implementation is first met. A context manager."""

    def __init__(self, device: str, workers: int, case_seconds: float) -> None:
        self._device = device
        self._workers = workers
        self._case_seconds = case_seconds
        self._stack = ExitStack()
        self._pools: dict[tuple[str, str], WorkerPool] = {}

    def __enter__(self) -> Pools:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def describe(self) -> str:
        return next((pool.describe() for pool in self._pools.values()), self._device)

    def of(self, subject: Subject) -> WorkerPool:
        key = subject.target.name, subject.label
        if key not in self._pools:
            pool = WorkerPool(subject, self._device, self._workers, self._case_seconds)
            try:
                self._pools[key] = self._stack.enter_context(pool)
            except WorkerError as error:
                raise worker_failed(error) from error
        return self._pools[key]
