"""How an op without a rule runs: as a kernel, a view, a factory, or by decomposing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices.sim.asserts import is_out_of_memory
from capfuzz.devices.sim.ops import Op
from capfuzz.devices.sim.tensor import SimTensor, tag_all

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_NO_TENSORS = frozenset({int, float, bool, type(None), torch.dtype})


def scan(values: Any, host: list[torch.Tensor]) -> bool:
    """Whether a device tensor is among `values`; host tensors are appended to `host`."""
    found = False
    for value in values:
        kind = type(value)
        if kind is SimTensor:
            found = True
        elif kind in _NO_TENSORS:
            continue
        elif kind is list or kind is tuple:
            found = scan(value, host) or found
        elif isinstance(value, torch.Tensor):
            if isinstance(value, SimTensor):
                found = True
            else:
                host.append(value)
    return found


def run_kernel(rt: Runtime, op: Op, args: Args, kwargs: Kwargs, host_has_read: bool = False) -> Any:
    """A kernel when it has a device tensor, host work otherwise. `host_has_read`: see `Runtime.launch`."""
    host: list[torch.Tensor] = []
    on_device = scan(args, host)
    if kwargs:
        on_device = scan(kwargs.values(), host) or on_device
    if not on_device:
        return run_host(rt, op, args, kwargs)
    if host:
        rt.check_same_device(op, args, kwargs, host)
    capture = rt.stream.capture
    if capture is not None:
        return capture.record(rt, op, args, kwargs, bool(host))
    return rt.launch(op, args, kwargs, host_has_read)


def run_host(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Host work: it runs now, capture or not."""
    return ran_on_host(rt, op, args, kwargs, op.call(*args, **kwargs))


def ran_on_host(rt: Runtime, op: Op, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """`result`, once the tracer knows that the host has computed it."""
    if rt.tracer is not None:
        rt.tracer.add_unrecorded(op.name, "host", op.func, args, kwargs, result)
    return result


def run_view(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """A view changes no memory and records nothing; it is on the device if its base is."""
    base = args[0] if args else None
    if type(base) is SimTensor and rt.tracer is None and not op.mutated:
        result = op.call(*args, **kwargs) if kwargs else op.call(*args)
        if type(result) is torch.Tensor:
            result.__class__ = SimTensor
            return result
        return tag_all(result)
    if op.mutated and isinstance(base, SimTensor):
        rt.reshaped_in_place(base)
    result = op.call(*args, **kwargs)
    if isinstance(base, SimTensor) or (isinstance(base, (list, tuple)) and base and isinstance(base[0], SimTensor)):
        tag_all(result)
        if rt.tracer is not None:
            rt.tracer.add(op.name, "view", result, read=args)
        return result
    return ran_on_host(rt, op, args, kwargs, result)


def run_factory(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """An op that takes a `device`: the device that the caller named, else its tensor argument's, else the enclosing call's."""
    pin = bool(kwargs.get("pin_memory"))
    if pin:
        kwargs = {**kwargs, "pin_memory": False}
    host: list[torch.Tensor] = []
    has_device_tensor = scan(args, host)
    if rt.names_device is not None:
        on_device = rt.names_device
    elif has_device_tensor or host:
        on_device = has_device_tensor
    else:
        on_device = rt.in_device_call()
    device = kwargs.get("device")
    if device is not None and device.type == "cuda":
        on_device = True
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if on_device:
        if pin:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        try:
            return rt.launch(op, args, kwargs)
        except RuntimeError as error:
            raise _as_cuda_says(error) from None
    result = ran_on_host(rt, op, args, kwargs, op.call(*args, **kwargs))
    return rt.pin(result) if pin else result


def _as_cuda_says(error: RuntimeError) -> RuntimeError:
    """A failed allocation is an error of its own on the device."""
    return torch.OutOfMemoryError(f"CUDA out of memory. {error}") if is_out_of_memory(error) else error


def run_composite(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Inference mode hands composite ops over whole: take them apart, so that what they are made of is judged."""
    from capfuzz.devices.sim.dispatch import SimDispatchMode

    with SimDispatchMode(rt):
        result = op.func.decompose(*args, **kwargs)
    if result is NotImplemented:
        return run_kernel(rt, op, args, kwargs)
    return result


def has_python_kernel(name: str) -> bool:
    """Whether what CUDA would run for this op is a Python function (`torch.library`), by the dispatcher's own table."""
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA"):
        return False
    for line in torch._C._dispatch_dump(name).splitlines():
        key, _, origin = line.partition(": ")
        if key in ("CUDA", "CompositeExplicitAutograd[alias]"):
            return origin.endswith("(none) [ boxed ]")
    return False


def run_python_kernel(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """A custom op with a Python body is entered: what it does inside is judged, and recorded op by op."""
    from capfuzz.devices.sim.dispatch import SimDispatchMode
    from capfuzz.devices.sim.surface import SimFunctionMode

    if not (scan(args, []) or scan(kwargs.values(), [])):
        return run_host(rt, op, args, kwargs)
    with SimFunctionMode(rt), SimDispatchMode(rt):
        return op.func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *args, **kwargs)
