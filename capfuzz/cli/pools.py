"""A worker pool for each implementation that a verb meets."""

from __future__ import annotations

import contextlib

from capfuzz.cli.errors import worker_failed
from capfuzz.targets import Subject
from capfuzz.workers import WorkerError, WorkerPool

MOST_OPEN = 4  # a pool has processes and files, and on a GPU its memory


class Pools:
    """Opens a pool when an implementation is first met; closes the one that was not needed for longest. A context manager."""

    def __init__(self, device: str, workers: int, case_seconds: float) -> None:
        self._device = device
        self._workers = workers
        self._case_seconds = case_seconds
        self._pools: dict[tuple[str, str], WorkerPool] = {}

    def __enter__(self) -> Pools:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.ExitStack() as closing:
            for pool in self._pools.values():
                closing.push(pool)

    def describe(self) -> str:
        """The device, of a pool that is open; its name where none is."""
        return next((pool.describe() for pool in self._pools.values()), self._device)

    def of(self, subject: Subject) -> WorkerPool:
        """Raises what fits if it cannot be opened."""
        key = subject.target.name, subject.label
        pool = self._pools.pop(key, None)
        if pool is None:
            if len(self._pools) == MOST_OPEN:
                self._pools.pop(next(iter(self._pools))).__exit__()
            try:
                pool = WorkerPool(subject, self._device, self._workers, self._case_seconds).__enter__()
            except WorkerError as error:
                raise worker_failed(error) from error
        self._pools[key] = pool  # the last one in their order
        return pool
