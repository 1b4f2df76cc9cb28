"""Fixtures that every kind of test uses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from capfuzz.devices import Device, open_device


@pytest.fixture
def device() -> Iterator[Device]:
    """The simulated device."""
    with open_device("sim") as opened:
        yield opened


class Processes:
    """What /proc knows of processes. One is named by its number and the time of its start: numbers are used again."""

    def below(self, root: int) -> set[tuple[int, str]]:
        """Every process that descends from `root`, zombies included."""
        parents = dict(self._all())
        found: set[tuple[int, str]] = set()
        roots = {root}
        while roots:
            new = {process for process, parent in parents.items() if parent in roots} - found
            found |= new
            roots = {number for number, _ in new}
        return found

    def left(self, processes: set[tuple[int, str]], seconds: float = 5.0) -> set[tuple[int, str]]:
        """Those that are there still after some seconds."""
        deadline = time.monotonic() + seconds
        while True:
            left = processes & {process for process, _ in self._all()}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.02)

    def _all(self) -> Iterator[tuple[tuple[int, str], int]]:
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            yield (int(path.parent.name), fields[19]), int(fields[1])


@pytest.fixture
def processes() -> Processes:
    return Processes()
