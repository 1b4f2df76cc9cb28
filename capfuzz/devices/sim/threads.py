"""Threads that the code under test starts: they are on the simulated machine of the thread that started them.

As on hardware, a new thread's current stream is the default one: what it does while another thread captures runs at once and is
not recorded, and in global mode it may not wait for the device. A thread may outlive the machine (a pool's does); from
then on it is on plain PyTorch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from capfuzz.devices.sim.dispatch import SimDispatchMode
from capfuzz.devices.sim.runtime import Machine, Runtime, active
from capfuzz.devices.sim.surface import SimFunctionMode

Start = Callable[[threading.Thread], None]


class _FunctionMode(SimFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.runtime.machine.is_open:
            return super().__torch_function__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


class _DispatchMode(SimDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.runtime.machine.is_open:
            return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


def starting_on_the_machine(original: Start) -> Start:
    """`threading.Thread.start` that takes the starter's machine along."""

    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        runtime = active()
        if runtime is not None and torch._C._len_torch_dispatch_stack():
            self.run = functools.partial(_run, runtime.machine, self.run)  # type: ignore[method-assign]
        original(self)

    return start


def _run(machine: Machine, run: Callable[[], None]) -> None:
    runtime = Runtime(machine)
    previous = runtime.install()
    try:
        with _FunctionMode(runtime), _DispatchMode(runtime):
            run()
    finally:
        Runtime.uninstall(previous)
        machine.runtimes.remove(runtime)
