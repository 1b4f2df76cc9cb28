"""Ops that take a 0-dim tensor for a scalar in a way of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices.sim.kernels import Args, Kwargs, run_host, run_kernel, scan
from capfuzz.devices.sim.ops import Op, lookup, rule
from capfuzz.devices.sim.rules.copies import copy_to
from capfuzz.devices.sim.rules.synchronising import read_on_host
from capfuzz.devices.sim.tensor import is_sim

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime


@rule("aten::fill_.Tensor", "aten::fill.Tensor")
def fill_tensor(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """A device value is read by the kernel; a host value is baked (`fill_` calls `value.item()`)."""
    if not is_sim(args[0]):
        if is_sim(args[1]):
            read_on_host(rt)
        return run_host(rt, op, args, kwargs)
    return rt.launch(op, args, kwargs)


@rule("aten::masked_fill.Tensor", "aten::masked_fill_.Tensor", "aten::index_fill.int_Tensor", "aten::index_fill_.int_Tensor")
def value_read_on_host(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """`masked_fill` and `index_fill` read a tensor value with `item()`, wherever it is: baked on the host, a wait on the
    device."""
    if not scan(args[:-1], []):
        return run_host(rt, op, args, kwargs)
    host: list[Any] = []
    scan(args[:-1], host)
    if host:
        rt.check_same_device(op, args, kwargs, host)
    if is_sim(args[-1]):
        read_on_host(rt)
    return rt.launch(op, args, kwargs)


@rule("aten::where.self", "aten::where.self_out")
def where(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """`where` moves a 0-dim host operand to the condition's device with `to`."""
    host: list[Any] = []
    if not scan(args, host):
        return run_host(rt, op, args, kwargs)
    if host:
        if any(h.dim() for h in host) or not is_sim(args[0]):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
        args = tuple(a if is_sim(a) else copy_to(rt, a, True, None, False) for a in args)
    return rt.launch(op, args, kwargs)


@rule("aten::floor_divide", "aten::div.Tensor_mode", "aten::remainder.Tensor", "aten::fmod.Tensor")
def integer_division(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """A GPU does not trap on an integer division by zero; the CPU kernel does. The quotient is then unspecified: all ones."""
    divisor = args[1]
    if not (is_sim(args[0]) and is_sim(divisor)) or args[0].is_floating_point() or divisor.is_floating_point():
        return run_kernel(rt, op, args, kwargs)
    zero = rt.launch(lookup(torch.ops.aten.eq.Scalar), (divisor, 0), {})
    safe = rt.launch(lookup(torch.ops.aten.masked_fill.Scalar), (divisor, zero, 1), {})
    quotient = rt.launch(op, (args[0], safe, *args[2:]), kwargs)
    return rt.launch(lookup(torch.ops.aten.masked_fill.Scalar), (quotient, zero, -1), {})
