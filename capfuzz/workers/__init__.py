"""Cases judged in other processes, which may die: an assert on the device is for ever, a hang is too.

A *zygote* (`zygote`) is forked from the parent before it has threads or a GPU; it forks *workers* (`worker`), each with a
device of its own, in a few milliseconds. The *pool* (`pool`) is the parent's side: it hands out cases, watches time and
memory, and turns a worker's death into the outcome of the case that it had.
"""

from capfuzz.workers.errors import JudgeFailed, WorkerError
from capfuzz.workers.judges import InProcess, Judge
from capfuzz.workers.pool import WorkerPool

__all__ = ["InProcess", "Judge", "JudgeFailed", "WorkerError", "WorkerPool"]
