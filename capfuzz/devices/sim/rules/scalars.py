"""Ops that take a 0-dim tensor for a scalar in a way of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices.sim.kernels import Args, Kwargs, run_host, run_kernel, scan
from capfuzz.devices.sim.ops import Op, lookup, rule
from capfuzz.devices.sim.rules.copies import copy_to
from capfuzz.devices.sim.rules.synchronising import copy_to_host, read_on_host
from capfuzz.devices.sim.tensor import is_sim, type_name

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
    """`where` moves a 0-dim host operand, the condition too, to the others' device with `to`."""
    host: list[Any] = []
    if not scan(args, host):
        return run_host(rt, op, args, kwargs)
    if host:
        if any(h.dim() for h in host):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
        args = tuple(a if is_sim(a) else copy_to(rt, a, True, None, False) for a in args)
    return rt.launch(op, args, kwargs)


@rule("aten::floor_divide", "aten::div.Tensor_mode", "aten::remainder.Tensor", "aten::fmod.Tensor")
def integer_division(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """A GPU does not trap on an integer division by zero; the CPU kernel does. The quotient is then unspecified: all ones."""
    dividend, divisor = args[0], args[1]
    if not is_sim(dividend) or dividend.is_floating_point():
        return run_kernel(rt, op, args, kwargs)
    if not is_sim(divisor):
        if type(divisor) is int and divisor == 0:
            return rt.launch(lookup(torch.ops.aten.full_like.default), (dividend, -1), {})
        return run_kernel(rt, op, args, kwargs)
    if divisor.is_floating_point():
        return run_kernel(rt, op, args, kwargs)
    zero = rt.launch(lookup(torch.ops.aten.eq.Scalar), (divisor, 0), {})
    safe = rt.launch(lookup(torch.ops.aten.masked_fill.Scalar), (divisor, zero, 1), {})
    quotient = rt.launch(op, (args[0], safe, *args[2:]), kwargs)
    return rt.launch(lookup(torch.ops.aten.masked_fill.Scalar), (quotient, zero, -1), {})


@rule("aten::bernoulli_.Tensor")
def bernoulli(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Probabilities are moved to the tensor's device with `to`."""
    if is_sim(args[0]) and not is_sim(args[1]):
        args = (args[0], copy_to(rt, args[1], True, None, False), *args[2:])
    return run_kernel(rt, op, args, kwargs)


_INTEGER_MATMULS = {"mm": "addmm_cuda", "addmm": "addmm_cuda", "bmm": "baddbmm_cuda", "baddbmm": "baddbmm_cuda"}
_INTEGER_MATMULS |= {"mv": "addmv_impl_cuda", "addmv": "addmv_impl_cuda", "dot": "dot", "vdot": "vdot"}


@rule(*(f"aten::{name}" for name in _INTEGER_MATMULS))
def matmul(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """cuBLAS multiplies no integers; the CPU does."""
    tensor = args[-1] if isinstance(args[-1], torch.Tensor) else args[0]
    if is_sim(tensor) and not (tensor.is_floating_point() or tensor.is_complex()):
        kernel = _INTEGER_MATMULS[op.func._schema.name.split("::")[1]]
        dtype = type_name(tensor).split(".")[-1].removesuffix("Tensor")
        dtype = type_name(tensor).split(".")[-1].removesuffix("Tensor")
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{dtype}'")
    return run_kernel(rt, op, args, kwargs)


@rule("aten::histc")
def histc(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """With `min == max` the bounds are the data's own, and come to the host. CUDA also counts integers, the CPU does not."""
    low = args[2] if len(args) > 2 else kwargs.get("min", 0)
    high = args[3] if len(args) > 3 else kwargs.get("max", 0)
    if not is_sim(args[0]):
        return run_host(rt, op, args, kwargs)
    if low == high:
        copy_to_host(rt)
    if args[0].is_floating_point():
        return run_kernel(rt, op, args, kwargs)
    to_copy = lookup(torch.ops.aten._to_copy.default)
    counted = rt.launch(op, (rt.launch(to_copy, (args[0],), {"dtype": torch.float64}), *args[1:]), kwargs)
    return rt.launch(to_copy, (counted,), {"dtype": args[0].dtype})


@rule("aten::addcmul", "aten::addcmul_")
def addcmul(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """The factors may be 0-dim host tensors, what is added to may not."""
    if not is_sim(args[0]) and scan(args, []):
        raise RuntimeError("CPU Scalar support for self argument is not supported when calling addcmul on CUDA tensors.")
    return run_kernel(rt, op, args, kwargs)
