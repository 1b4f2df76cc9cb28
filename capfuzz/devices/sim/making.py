"""The Python surface: tensors that are made of data, and indices that are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.utils import _device

from capfuzz.devices.sim.moving import copy, move
from capfuzz.devices.sim.rules.synchronising import copy_to_host, read_on_host
from capfuzz.devices.sim.runtime import Runtime, any_sim
from capfuzz.devices.sim.surface import Func, names_cuda, prepared, surface
from capfuzz.devices.sim.tensor import TYPE_NAMES, is_sim


def _holds_sim(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and (any_sim(data) or any(_holds_sim(item) for item in data))


def _from_data(rt: Runtime, func: Func, data: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], to_device: bool) -> Any:
    """Builds the tensor on the host and copies it over: `internal_new_from_data` does the same."""
    if _holds_sim(data):
        read_on_host(rt)  # a list of device scalars is read one `item()` at a time
    kwargs = {**kwargs, "device": "cpu"}
    requires_grad = bool(kwargs.pop("requires_grad", False))
    host = func(data, *rest, **kwargs)
    moved = copy(rt, host, True, None, False) if to_device else host
    return moved.requires_grad_() if requires_grad else moved


@surface(torch.tensor, torch.as_tensor, torch.asarray)
def _tensor(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    rest = args[1:]
    device = kwargs.get("device", _device.CURRENT_DEVICE)
    if isinstance(data, torch.Tensor):
        to_device = is_sim(data) if device is None else names_cuda(device)
        moved = move(rt, data.detach(), to_device, kwargs.get("dtype"), False)
        return moved.clone() if func is torch.tensor and moved is not data and moved.data_ptr() == data.data_ptr() else moved
    kwargs = {k: v for k, v in kwargs.items() if k not in ("data", "obj")}
    if kwargs.pop("pin_memory", False):
        return rt.pin(_from_data(rt, func, data, rest, kwargs, False))
    return _from_data(rt, func, data, rest, kwargs, device is not None and names_cuda(device))


def _is_host_mask(index: Any) -> bool:
    """A list or an array of booleans."""
    if isinstance(index, np.ndarray):
        return bool(index.dtype.kind == "b")
    while isinstance(index, list) and index:
        index = index[0]
    return isinstance(index, bool)


@prepared(torch.Tensor.__getitem__, torch.Tensor.__setitem__)
def with_masks_moved(rt: Runtime, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list or an array as index becomes a tensor on the indexed one's device (`sequenceToVariable`): a pageable copy.

    Integers end the same way in the op itself, as a host index tensor; a host mask tensor is expanded on the host there.
    """
    index = args[1]
    parts = index if isinstance(index, tuple) else (index,)
    masks = [isinstance(part, (list, np.ndarray)) and _is_host_mask(part) for part in parts]
    if not is_sim(args[0]) or not any(masks):
        return args
    moved = tuple(
        copy(rt, torch.as_tensor(part), True, None, False) if is_mask else part
        for part, is_mask in zip(parts, masks, strict=True)
    )
    return (args[0], moved if isinstance(index, tuple) else moved[0], *args[2:])


@surface(torch.Tensor.new_tensor)
def _new_tensor(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    like, data = args[0], args[1] if len(args) > 1 else kwargs["data"]
    device = kwargs.get("device")
    to_device = is_sim(like) if device is None else names_cuda(device)
    dtype = kwargs.get("dtype") or like.dtype
    if isinstance(data, torch.Tensor):
        return move(rt, data.detach().clone(), to_device, dtype, False)
    return _from_data(rt, torch.tensor, data, (), {**kwargs, "dtype": dtype}, to_device)


@surface(torch.nn.functional.one_hot)
def _one_hot(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On a device the class values are checked by the scatter kernel, on the host by the host."""
    tensor = args[0] if args else kwargs["tensor"]
    if not is_sim(tensor):
        return func(*args, **kwargs)
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if classes == -1:
        classes = int(tensor.max().item()) + 1
    zeros = tensor.new_zeros((*tensor.shape, classes))
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


@surface(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    points = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    if is_sim(points):
        raise RuntimeError("tensor_split expected tensor_indices_or_sections to be on cpu, but it's on cuda:0")
    return func(*args, **kwargs)


@surface(torch.Tensor.__deepcopy__)
def _deepcopy(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not is_sim(tensor):
        return func(*args, **kwargs)
    memo = args[1] if len(args) > 1 else {}
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


@surface(torch.Tensor.__reduce_ex__)
def _reduce(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_sim(args[0]):
        copy_to_host(rt)
    return func(*args, **kwargs)


@surface(torch.unravel_index)
def _unravel_index(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes device tensors of the shape, pageable; the function's own `torch.tensor` calls are seen by no mode."""
    indices, shape = args[0] if args else kwargs["indices"], args[1] if len(args) > 1 else kwargs["shape"]
    if not is_sim(indices):
        return func(*args, **kwargs)
    sizes = [shape] if isinstance(shape, int) else list(shape)
    steps = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    on_device = [copy(rt, torch.tensor(values, dtype=torch.int64), True, None, False) for values in (steps, sizes)]
    return (indices.unsqueeze(-1).floor_divide(on_device[0]) % on_device[1]).unbind(-1)


def legacy_tensor(dtype: torch.dtype) -> type:
    """`torch.cuda.IntTensor` and its like: a constructor, and a class for `isinstance`."""

    class Legacy(type):
        def __call__(cls, *args: Any) -> torch.Tensor:
            if args and not all(isinstance(size, int) for size in args):
                return torch.tensor(args[0], dtype=dtype, device="cuda")
            return torch.empty(args, dtype=dtype, device="cuda")

        def __instancecheck__(cls, instance: object) -> bool:
            return is_sim(instance) and isinstance(instance, torch.Tensor) and instance.dtype is dtype

    return Legacy(f"{TYPE_NAMES[dtype]}Tensor", (), {"__module__": "torch.cuda"})
