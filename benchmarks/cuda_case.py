"""What one case costs on a GPU, over the same work written by hand: `python benchmarks/cuda_case.py [--cases N]`.

By hand: for each case the same eager calls on fresh buffers, one capture into a shared pool, the same replays with new contents
copied in, a synchronise after each, and everything read back that the check reads; no comparison, no poison, no tracing. The
median of 7 rounds over the cases counts. With `--growth N` it then runs N cases and prints how much memory grew, on the device
and on the host.
"""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import open_device
from capfuzz.devices.layout import Argument, HostMemory
from capfuzz.differential import Feed, check
from capfuzz.targets import get_target, shipped

ROUNDS = 7


class ByHand:
    """The same work, as one would write it for one op."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.keeper = torch.cuda.CUDAGraph()
        anything = torch.zeros(1, device="cuda")
        with torch.cuda.stream(self.stream):
            self.keeper.capture_begin(pool=self.pool)
            self.kept = anything + 1
            self.keeper.capture_end()

    def case(self, function: object, feeds: Sequence[Feed]) -> None:
        memories = []
        for feed in feeds:
            memories.append(memory_of(feed))
            base, tensor = on_device(memories[-1])
            self.read(self.call(function, feed, tensor), base)
        base, tensor = on_device(memories[0])
        self.read(self.call(function, feeds[0], tensor), base)
        graph = torch.cuda.CUDAGraph()
        seed()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            result = function(**{**feeds[0], "indptr": tensor})  # type: ignore[operator]
            graph.capture_end()
        steps = len(feeds)
        for step in [*range(steps), steps - 1, 0]:
            base.copy_(torch.from_numpy(memories[step].base))
            seed()
            graph.replay()
            torch.cuda.synchronize()
            self.read(result, base)
        graph.reset()

    def call(self, function: object, feed: Feed, tensor: torch.Tensor) -> torch.Tensor:
        seed()
        result: torch.Tensor = function(**{**feed, "indptr": tensor})  # type: ignore[operator]
        torch.cuda.synchronize()
        return result

    def read(self, result: torch.Tensor, base: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        return result.cpu().numpy(), base.cpu().numpy()


def seed() -> None:
    torch.default_generator.manual_seed(0)
    torch.cuda.default_generators[0].manual_seed(0)


def memory_of(feed: Feed) -> HostMemory:
    argument = feed["indptr"]
    assert isinstance(argument, Argument)
    return HostMemory(argument)


def on_device(memory: HostMemory) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.from_numpy(memory.base).cuda()
    return base, memory.tensor(base)


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--growth", type=int, default=0)
    options = parser.parse_args()
    target = get_target("fold_indptr")
    subject = shipped(target)
    feeds = [target.feeds(case) for case in drawn(target.strategy(), options.cases, 1)]
    with open_device("cuda") as device:
        hand = ByHand()
        print(f"{datetime.date.today().isoformat()}  {device.describe()}, {os.cpu_count()} CPU cores")
        rounds: dict[str, list[float]] = {"by hand": [], "capfuzz": []}
        for name in [*rounds] * (1 + ROUNDS):  # in turn, for a change of the clock to meet both; the first round warms up
            begun = time.perf_counter()
            for feed in feeds:
                if name == "by hand":
                    hand.case(subject.function, feed)
                else:
                    check(device, subject.function, feed, target.reference)
            torch.cuda.synchronize()
            rounds[name].append(time.perf_counter() - begun)
        times = {name: statistics.median(seconds[1:]) for name, seconds in rounds.items()}
        for name, seconds in times.items():
            print(f"  {name:8} {1e3 * seconds / len(feeds):7.3f} ms a case, {len(feeds) / seconds:6.0f} cases a second")
        print(f"  capfuzz / by hand: {times['capfuzz'] / times['by hand']:.2f} (aim: at most 1.5)")
        if options.growth:
            before = torch.cuda.memory_reserved(), resident()
            for number in range(options.growth):
                check(device, subject.function, feeds[number % len(feeds)], target.reference)
            after = torch.cuda.memory_reserved(), resident()
            grown = [(b - a) / 2**20 for a, b in zip(before, after, strict=True)]
            print(f"  {options.growth} more cases: device memory grew by {grown[0]:.1f} MiB, host memory by {grown[1]:.1f} MiB")


if __name__ == "__main__":
    main()
