"""How much memory there is, and how much of it a process holds; 0 where that cannot be told."""

from __future__ import annotations

import os

LEAST_SHARE = 512 << 20
_OF_FREE = 0.5


def share(workers: int) -> int:
    """What one of several workers may take beyond what it has at its start: all of them together half of what is free now."""
    free = _free()
    return max(LEAST_SHARE, int(free * _OF_FREE / workers)) if free else 0


def _free() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def held_by(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
