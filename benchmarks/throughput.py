"""How many whole cases a second capfuzz checks, and where the time of one case goes.

`python benchmarks/throughput.py [TARGET] [--cases N] [--seed N]` prints the machine, cases a second with generation included
(one process, one torch thread), and the mean microseconds a case of each part.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from capfuzz.campaign.hypothesis_engine import property_of
from capfuzz.devices import Device, open_device
from capfuzz.differential import check
from capfuzz.targets import Case, Target, get_target

WARM_UP = 100


class Stopwatch:
    """Adds up the seconds that a device's methods take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

        return call


class TimedDevice:
    """A device whose calls are timed."""

    def __init__(self, device: Device, watch: Stopwatch) -> None:
        self._device = device
        self._watch = watch
        self.buffer = watch.timed("buffers", device.buffer)
        self.eager = watch.timed("eager", device.eager)
        self.warm_up = watch.timed("eager", device.warm_up)
        self.read_all = watch.timed("read back", device.read_all)

    def capture(self, *args: Any) -> Any:
        graph = self._watch.timed("capture", self._device.capture)(*args)
        graph.replay = self._watch.timed("replay", graph.replay)
        return graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def draw(target: Target, cases: int, seed: int) -> tuple[list[Case], float]:
    """The cases of one seed, and the seconds that drawing them took."""
    drawn: list[Case] = []
    test = property_of(target.strategy(), drawn.append, cases, seed)
    begun = time.perf_counter()
    test()
    return drawn, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="fold_indptr")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = get_target(options.target)
    cases, drawing = draw(target, options.cases, options.seed)
    watch = Stopwatch()
    whole: list[float] = []
    with open_device("sim") as device:
        timed: Any = TimedDevice(device, watch)
        for case in cases[:WARM_UP]:
            check(device, target.implementation, target.feeds(case), target.reference)
        for case in cases:
            begun = time.perf_counter()
            check(device, target.implementation, target.feeds(case), target.reference)
            whole.append(time.perf_counter() - begun)
        untimed = sum(whole)
        begun = time.perf_counter()
        for case in cases:
            check(timed, target.implementation, target.feeds(case), target.reference)
        total = time.perf_counter() - begun
    count = len(cases)
    small = [seconds for seconds, case in zip(whole, cases, strict=True) if target.batch(case) <= 16]
    print(f"machine      {platform.machine()}, {os.cpu_count()} cores, {platform.platform(terse=True)}")
    print(f"versions     Python {platform.python_version()}, torch {torch.__version__}, one thread")
    print(f"target       {target.name}, {count} cases, seed {options.seed}, on sim")
    print(f"whole cases  {count / (drawing + untimed):.0f} a second with generation, {count / untimed:.0f} without")
    medians = [1e6 * statistics.median(seconds) for seconds in (whole, small)]
    print(f"one case     {medians[0]:.0f} us median, {medians[1]:.0f} us median at batch <= 16")
    print("where the time goes, us a case (with the stopwatch's own cost)")
    print(f"  {'generate':<12}{1e6 * drawing / count:8.1f}")
    for name, seconds in watch.seconds.items():
        print(f"  {name:<12}{1e6 * seconds / count:8.1f}")
    print(f"  {'the rest':<12}{1e6 * (total - sum(watch.seconds.values())) / count:8.1f}   (compare, reference, feeds)")


if __name__ == "__main__":
    main()
