"""The Python surface: tensors that move between host and device."""

from __future__ import annotations

from typing import Any

import torch

from capfuzz.devices.sim.rules.copies import copy_to
from capfuzz.devices.sim.runtime import Runtime, current
from capfuzz.devices.sim.surface import Func, names_cuda, surface
from capfuzz.devices.sim.tensor import is_sim


def move(rt: Runtime, tensor: torch.Tensor, to_device: bool, dtype: torch.dtype | None, non_blocking: bool) -> Any:
    if to_device == is_sim(tensor):
        if dtype is None or dtype == tensor.dtype:
            return tensor
        return torch.ops.aten._to_copy.default(tensor, dtype=dtype)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Move.apply(tensor, to_device, dtype, non_blocking)  # type: ignore[no-untyped-call]
    return copy(rt, tensor, to_device, dtype, non_blocking)


def copy(rt: Runtime, tensor: torch.Tensor, to_device: bool, dtype: torch.dtype | None, non_blocking: bool) -> Any:
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return copy_to(rt, tensor, to_device, dtype, non_blocking)


class _Move(torch.autograd.Function):
    """A move between devices that gradients follow."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, to_device: bool, dtype: torch.dtype | None, non_blocking: bool) -> Any:

        ctx.dtype = tensor.dtype
        return copy(current(), tensor, to_device, dtype, non_blocking)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:

        grad = grads[0]
        return copy(current(), grad, not is_sim(grad), ctx.dtype, False), None, None, None


@surface(torch.Tensor.to)
def _to(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and not kwargs and isinstance(args[1], torch.dtype):
        return NotImplemented  # no move
    tensor = args[0]
    kwargs = dict(kwargs)
    copy = bool(kwargs.pop("copy", False))
    other = kwargs.pop("other", args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else None)
    if other is not None:
        device: Any = "cuda" if is_sim(other) else "cpu"
        dtype: torch.dtype | None = other.dtype
        rest = args[2:] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[1:]
        non_blocking = bool(kwargs.get("non_blocking", rest[0] if rest else False))
    else:
        positional = list(args[1:])
        if positional and isinstance(positional[0], int) and not isinstance(positional[0], bool):
            positional[0] = torch.device("cuda", positional[0])
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if len(positional) > 3 or (len(positional) == 3 and isinstance(positional[0], torch.dtype)):
            copy = bool(positional.pop())
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*positional, **kwargs)
        if memory_format is not None and (device is None or names_cuda(device) == is_sim(tensor)):
            return func(*args, **{**kwargs, **({"device": "cpu"} if kwargs.get("device") is not None else {})})
    to_device = is_sim(tensor) if device is None else names_cuda(device)
    moved = move(rt, tensor, to_device, dtype, non_blocking)
    return moved.clone() if copy and moved is tensor else moved


@surface(torch.Tensor.cpu)
def _cpu(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return move(rt, args[0], False, None, False)


@surface(torch.Tensor.cuda)
def _cuda(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.get("device", args[1] if len(args) > 1 else None)
    if device is not None:
        names_cuda(device)
    return move(rt, args[0], True, None, bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))


@surface(torch.Tensor.tolist)
def _tolist(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    return func(move(rt, tensor.detach(), False, None, False) if is_sim(tensor) else tensor)


@surface(torch.Tensor.type_as)
def _type_as(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return move(rt, args[0], is_sim(other), other.dtype, False)


@surface(torch.Tensor.numpy, torch.Tensor.__array__)
def _numpy(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_sim(args[0]) and kwargs.get("force"):
        return func(move(rt, args[0].detach(), False, None, False))
    if is_sim(args[0]):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return func(*args, **kwargs)


@surface(torch.Tensor.pin_memory)
def _pin_memory(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not is_sim(tensor) and tensor in rt.pinned:
        return tensor
    return torch.ops.aten._pin_memory.default(tensor)


@surface(torch.Tensor.is_pinned)
def _is_pinned(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return not is_sim(args[0]) and args[0] in rt.pinned
