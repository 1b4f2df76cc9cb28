"""The function mode: what the Python surface of PyTorch says and does about devices.

It sees every `torch` call before C++ does. It takes `device="cuda"` out of factories, moves tensors between host and device
(`to`, `cpu`, `cuda`, `tolist`, `numpy`, `torch.tensor`), and keeps the call's arguments, so that a factory inside a composite
op knows whose options it takes. Everything else goes through untouched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from capfuzz.devices.errors import invalid_device
from capfuzz.devices.sim import shortcuts
from capfuzz.devices.sim.rules.copies import copy_to
from capfuzz.devices.sim.rules.synchronising import copy_to_host, read_on_host
from capfuzz.devices.sim.runtime import Runtime, any_sim
from capfuzz.devices.sim.tensor import is_sim, tag, type_name

Func = Callable[..., Any]
Handler = Callable[[Runtime, Func, tuple[Any, ...], dict[str, Any]], Any]
_surface: dict[Any, Handler] = {}


def surface(*functions: Any) -> Callable[[Handler], Handler]:
    """Registers what a Python-level torch function does on the simulated device."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            _surface[function] = handler
        return handler

    return register


def names_cuda(device: Any) -> bool:
    """Whether `device` (a string, an index, a `torch.device`) is the simulated one. Another CUDA index is an error."""
    index: int | None
    if isinstance(device, torch.device):
        kind, index = device.type, device.index
    elif isinstance(device, int) and not isinstance(device, bool):
        kind, index = "cuda", device
    else:
        kind, _, tail = str(device).partition(":")
        index = int(tail) if tail.isdigit() else None
    if kind != "cuda":
        return False
    if index not in (None, 0):
        invalid_device(int(index))
    return True


class SimFunctionMode(TorchFunctionMode):
    """Thin on purpose: special cases are in the table."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        runtime = self.runtime
        handler = _surface.get(func)
        outer = runtime.call, runtime.names_device, runtime.frame
        runtime.frame = sys._getframe(1)
        if handler is not None:
            try:
                return handler(runtime, func, args, kwargs or {})
            finally:
                runtime.frame = outer[2]
        if runtime.capture is None and runtime.tracer is None and not runtime.stream.index:
            key = shortcuts.key_of(func, args, kwargs)
            if key is not None:
                runtime.call, runtime.names_device = args, None
                try:
                    return shortcuts.run(runtime, key, func, args, kwargs)
                finally:
                    runtime.call, runtime.names_device, runtime.frame = outer
        runtime.call = args
        runtime.names_device = None
        try:
            if kwargs:
                device = kwargs.get("device")
                if device is not None:
                    runtime.names_device = names_cuda(device)
                    if runtime.names_device:
                        kwargs = {**kwargs, "device": "cpu"}
                else:
                    runtime.call = (*args, *kwargs.values())
                return func(*args, **kwargs)
            return func(*args)
        finally:
            runtime.call, runtime.names_device, runtime.frame = outer


# -- moving tensors ----------------------------------------------------------------------------------------------------


def _move(rt: Runtime, tensor: torch.Tensor, to_device: bool, dtype: torch.dtype | None, non_blocking: bool) -> Any:
    if to_device == is_sim(tensor):
        if dtype is None or dtype == tensor.dtype:
            return tensor
        return torch.ops.aten._to_copy.default(tensor, dtype=dtype)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Move.apply(tensor, to_device, dtype, non_blocking)  # type: ignore[no-untyped-call]
    return _copy(rt, tensor, to_device, dtype, non_blocking)


def _copy(rt: Runtime, tensor: torch.Tensor, to_device: bool, dtype: torch.dtype | None, non_blocking: bool) -> Any:
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return copy_to(rt, tensor, to_device, dtype, non_blocking)


class _Move(torch.autograd.Function):
    """A move between devices that gradients follow."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, to_device: bool, dtype: torch.dtype | None, non_blocking: bool) -> Any:
        from capfuzz.devices.sim.runtime import current

        ctx.dtype = tensor.dtype
        return _copy(current(), tensor, to_device, dtype, non_blocking)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from capfuzz.devices.sim.runtime import current

        grad = grads[0]
        return _copy(current(), grad, not is_sim(grad), ctx.dtype, False), None, None, None


@surface(torch.Tensor.to)
def _to(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and not kwargs and isinstance(args[1], torch.dtype):
        return func(*args)  # no move
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
    moved = _move(rt, tensor, to_device, dtype, non_blocking)
    return moved.clone() if copy and moved is tensor else moved


@surface(torch.Tensor.cpu)
def _cpu(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _move(rt, args[0], False, None, False)


@surface(torch.Tensor.cuda)
def _cuda(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.get("device", args[1] if len(args) > 1 else None)
    if device is not None:
        names_cuda(device)
    return _move(rt, args[0], True, None, bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))


@surface(torch.Tensor.tolist)
def _tolist(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    return func(_move(rt, tensor.detach(), False, None, False) if is_sim(tensor) else tensor)


@surface(torch.Tensor.numpy, torch.Tensor.__array__)
def _numpy(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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


# -- making tensors ----------------------------------------------------------------------------------------------------


def _holds_sim(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and (any_sim(data) or any(_holds_sim(item) for item in data))


def _from_data(rt: Runtime, func: Func, data: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], to_device: bool) -> Any:
    """Builds the tensor on the host and copies it over: `internal_new_from_data` does the same."""
    if _holds_sim(data):
        read_on_host(rt)  # a list of device scalars is read one `item()` at a time
    kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    requires_grad = bool(kwargs.pop("requires_grad", False))
    host = func(data, *rest, **kwargs)
    moved = _copy(rt, host, True, None, False) if to_device else host
    return moved.requires_grad_() if requires_grad else moved


@surface(torch.tensor, torch.as_tensor, torch.asarray)
def _tensor(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    rest = args[1:]
    device = kwargs.get("device")
    if isinstance(data, torch.Tensor):
        to_device = is_sim(data) if device is None else names_cuda(device)
        moved = _move(rt, data.detach(), to_device, kwargs.get("dtype"), False)
        return moved.clone() if func is torch.tensor and moved is not data and moved.data_ptr() == data.data_ptr() else moved
    kwargs = {k: v for k, v in kwargs.items() if k not in ("data", "obj")}
    if kwargs.pop("pin_memory", False):
        return rt.pinned.add(_from_data(rt, func, data, rest, kwargs, False))
    return _from_data(rt, func, data, rest, kwargs, device is not None and names_cuda(device))


@surface(torch.Tensor.new_tensor)
def _new_tensor(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    like, data = args[0], args[1] if len(args) > 1 else kwargs["data"]
    device = kwargs.get("device")
    to_device = is_sim(like) if device is None else names_cuda(device)
    dtype = kwargs.get("dtype") or like.dtype
    if isinstance(data, torch.Tensor):
        return _move(rt, data.detach().clone(), to_device, dtype, False)
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


# -- what a tensor says of itself --------------------------------------------------------------------------------------


@surface(torch.Tensor.get_device)
def _get_device(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return 0 if is_sim(args[0]) else -1


@surface(torch.Tensor.type)
def _type(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and is_sim(args[0]):
        return type_name(args[0])
    return func(*args, **kwargs)


@surface(torch.Tensor.__repr__)
def _repr(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Printing reads the values one by one, with every mode disabled: what it reads is judged here."""
    if is_sim(args[0]) and args[0].numel():
        read_on_host(rt)
    text: str = func(*args, **kwargs)
    if is_sim(args[0]):
        return text.replace(f"{type(args[0]).__name__}(", "tensor(", 1)
    return text


@surface(torch.Tensor.__format__)
def _format(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if is_sim(args[0]) and args[0].dim() == 0:
        return format(args[0].item(), args[1])
    return str(func(*args, **kwargs))


@surface(torch.Tensor.data.__set__)  # type: ignore[attr-defined]
def _set_data(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    func(*args, **kwargs)
    if is_sim(args[1]):
        tag(args[0])
