"""What Triton learns from the GPU: which one it is, and which configuration of a kernel is the fastest.

The GPU is an H200. Nothing is measured: an autotuned kernel takes the first of its configurations that is legal. But hardware
measures when a kernel meets arguments whose key it has not seen, and waits for the device: during capture that is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from capfuzz.devices.errors import NotModelledError
from capfuzz.devices.sim.runtime import Machine, current
from capfuzz.devices.sim.tensor import CUDA


class Driver:
    """`triton.runtime.driver.active` for the simulated GPU, an H200's figures."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {
                "max_shared_mem": 232_448,
                "max_num_regs": 65_536,
                "multiprocessor_count": 132,
                "warpSize": 32,
                "sm_clock_rate": 1_980_000,
                "mem_clock_rate": 3_201_000,
                "mem_bus_width": 6_144,
            }
        )

    def get_current_target(self) -> Any:
        return import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, device: Any = None) -> int:
        return current().stream.handle

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return 9, 0

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_interface(self) -> Any:
        return torch.cuda


DRIVER = Driver()


_tuned: weakref.WeakKeyDictionary[Machine, dict[tuple[Any, ...], Any]] = weakref.WeakKeyDictionary()


def autotuned(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`Autotuner.run` without measuring: the first configuration that is legal.

    One is not if its shared memory does not fit or a `tl.static_assert` fails; of these only the second is seen here.
    """
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    try:
        configs, remember, measures = _candidates(self, kwargs)
        failed: Exception | None = None
        for config in configs:
            everything = {**self.nargs, **kwargs, **config.all_kwargs()}
            if measures:  # what is left of the measuring
                self.pre_hook(everything, reset_only=True)
            self.best_config = config
            if config.pre_hook is not None:
                config.pre_hook(everything)
            try:
                result = self.fn.run(*args, **kwargs, **config.all_kwargs())
            except import_module("triton.compiler.errors").CompileTimeAssertionFailure as error:
                failed = failed or error
                continue
            remember(config)
            return result
        raise failed or NotModelledError("an autotuned kernel without a configuration")
    finally:
        self.nargs = None


def _candidates(self: Any, kwargs: dict[str, Any]) -> tuple[list[Any], Callable[[Any], None], bool]:
    """The configurations to try, in order; what notes the one that was taken; whether the hardware would measure now."""
    if len(self.configs) == 1:
        return self.configs, lambda config: None, False
    runtime = current()
    known = _tuned.setdefault(runtime.machine, {})
    given = {name: value for name, value in {**self.nargs, **kwargs}.items() if name in self.arg_names}
    dtypes = [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    key = (id(self), *(given[name] for name in self.keys if name in given), *dtypes)
    if key in known:
        return [known[key]], lambda config: None, False
    configs = self.prune_configs(kwargs)
    if len(configs) > 1:
        runtime.refuse_in_capture()
    return configs, partial(known.__setitem__, key), len(configs) > 1
