"""The simulated device: CUDA graph capture and replay without a GPU.

How it works, in one place. A device tensor is a CPU tensor tagged as being on `cuda:0` (`tensor`). A function mode (`surface`)
sees the Python calls and deals with devices; a dispatch mode (`dispatch`) sees every ATen op and hands it to a rule, or runs it
as a kernel, a view or a factory (`ops`, `kernels`, `rules`). In eager an op runs. During capture (`graph`) it leaves a node,
and when capture ends nothing has happened: buffers that existed are as they were, the graph's own memory is poison. Replay runs
the nodes on the same memory. What the hardware would refuse is refused with its own words (`capfuzz.devices.errors`): a
pageable copy, a wait for the device, a stream that was not joined. `streams` decides who takes part in a capture, `runtime`
holds the state of one machine, `cuda_api` puts the simulated names into `torch.cuda`.

No rule knows an idiom; each models a mechanism, and its source (PyTorch's code, or a verdict recorded on hardware) is stated
where the rule is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from capfuzz.devices.sim.cuda_api import API
from capfuzz.devices.sim.dispatch import SimDispatchMode
from capfuzz.devices.sim.runtime import Runtime
from capfuzz.devices.sim.surface import SimFunctionMode


@contextmanager
def machine() -> Iterator[Runtime]:
    """A simulated machine for this thread and those that it starts. Modes are not active; see `modes`."""
    runtime = Runtime()
    API.install()
    previous = runtime.install()
    try:
        yield runtime
    finally:
        runtime.machine.is_open = False
        Runtime.uninstall(previous)
        API.uninstall()


@contextmanager
def modes(runtime: Runtime) -> Iterator[None]:
    """Inside, this thread's PyTorch calls go to the simulated machine."""
    with SimFunctionMode(runtime), SimDispatchMode(runtime):
        yield


@contextmanager
def sim() -> Iterator[Runtime]:
    """Runs unmodified `torch.cuda` code, graphs included, on the simulated device.

    Everything is put back when the context ends, after an exception too. Device tensors do not outlive it.
    """
    with machine() as runtime, modes(runtime):
        yield runtime


__all__ = ["Runtime", "machine", "modes", "sim"]
