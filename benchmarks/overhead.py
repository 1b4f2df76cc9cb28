"""What the simulated device costs over plain PyTorch on the CPU: `python benchmarks/overhead.py`.

For `fold_indptr` at a small batch: one eager call, one replay and one whole capture (begin, body, end), each as a multiple of
the plain eager call. The median of several rounds, taken in turn, so that a busy machine disturbs all alike.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from capfuzz.devices import open_device
from capfuzz.devices.layout import Argument
from capfuzz.targets.fold_indptr import fold_indptr

ROUNDS = 15
CALLS = 200
BATCH, FOLD_FACTOR = 8, 3
LIMITS = {"eager": 6.0, "replay": 2.0, "capture": 10.0}


def microseconds(body: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(CALLS):
        body()
    return (time.perf_counter() - begun) / CALLS * 1e6


def main() -> None:
    indptr = np.arange(0, 4 * BATCH + 1, 4, dtype=np.int32)
    with open_device("sim") as device:
        plain = torch.from_numpy(indptr.copy())
        tensor = device.buffer(Argument(indptr)).tensor

        def body() -> torch.Tensor:
            return fold_indptr(tensor, FOLD_FACTOR)

        graph = device.capture(body, 0)
        timed: dict[str, Callable[[], object]] = {
            "plain": lambda: fold_indptr(plain, FOLD_FACTOR),
            "eager": lambda: device.eager(body, 0),
            "replay": lambda: graph.replay(0),
            "capture": lambda: device.capture(body, 0).close(),
        }
        rounds: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(ROUNDS):
            for name, call in timed.items():
                rounds[name].append(microseconds(call))
    base = statistics.median(rounds["plain"])
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, one thread")
    print(f"fold_indptr, batch {BATCH}, fold factor {FOLD_FACTOR}: median of {ROUNDS} rounds of {CALLS} calls")
    print(f"  plain    {base:7.1f} us")
    for name, limit in LIMITS.items():
        cost = statistics.median(rounds[name])
        print(f"  {name:8} {cost:7.1f} us  {cost / base:5.1f}x (aim: at most {limit:g}x)")


if __name__ == "__main__":
    main()
