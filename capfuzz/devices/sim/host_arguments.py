"""The Python surface: functions that take some of their arguments on the host, and bring them there themselves.

What they do in C++ with `.to(cpu)` is no step at all for a tensor whose bytes are the CPU's: it is judged here.
"""

from __future__ import annotations

from typing import Any

import torch

from capfuzz.devices.errors import NotModelledError
from capfuzz.devices.sim.runtime import Runtime
from capfuzz.devices.sim.surface import Func, surface
from capfuzz.devices.sim.tensor import is_sim, plain, tag


@surface(torch.nn.functional.ctc_loss, torch.ctc_loss)
def _ctc_loss(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lengths may lie on either side. For a tensor subclass PyTorch works with them where they lie: let that be the device."""
    if not is_sim(args[0]):
        return func(*args, **kwargs)
    moved = {name: _on_the_device(value) if name.endswith("_lengths") else value for name, value in kwargs.items()}
    return func(*args[:2], *map(_on_the_device, args[2:4]), *args[4:], **moved)


def _on_the_device(lengths: Any) -> Any:
    return tag(plain(lengths).detach()) if isinstance(lengths, torch.Tensor) else lengths


@surface(torch.linalg.eigvalsh)
def _eigvalsh(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if rt.capturing is not None and is_sim(args[0]) and args[0].numel():
        raise NotModelledError("torch.linalg.eigvalsh during capture is not modelled: cuSOLVER itself fails there")
    return func(*args, **kwargs)


@surface(torch.quantile, torch.nanquantile, torch.Tensor.quantile, torch.Tensor.nanquantile)
def _quantile(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """For a tensor of the CPU alone some versions check the quantiles' range, and read them for it."""
    rt.checks_of_the_cpu += 1
    try:
        return func(*args, **kwargs)
    finally:
        rt.checks_of_the_cpu -= 1
