"""Copies between host and device.

The algorithm is PyTorch's (`aten/src/ATen/native/cuda/Copy.cu`, `copy_kernel_cuda`): a copy that changes dtype or is not
contiguous goes through temporaries; the last step moves contiguous bytes of one dtype. During capture that step needs pinned
host memory, and a blocking one waits for the stream. A temporary on the host is pageable.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices import poison
from capfuzz.devices.errors import HostCopyError, not_permitted
from capfuzz.devices.sim.capture import Capture, Node
from capfuzz.devices.sim.kernels import Args, Kwargs, ran_on_host, run_kernel
from capfuzz.devices.sim.ops import Op, lookup, rule
from capfuzz.devices.sim.tensor import is_sim, plain, tag
from capfuzz.devices.trace import here

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime


@rule("aten::copy_", tells=True)
def copy_(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    destination, source = args[0], args[1]
    if is_sim(destination) == is_sim(source):
        return run_kernel(rt, op, args, kwargs)
    rt.met_a_rule = True
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    transfer(rt, destination, source, non_blocking)
    return destination


@rule("aten::_foreach_copy_")
def foreach_copy_(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    single = lookup(torch.ops.aten.copy_.default)
    rest = args[2:]
    for destination, source in zip(args[0], args[1], strict=True):
        copy_(rt, single, (destination, source, *rest), kwargs)
    return None


@rule("aten::_to_copy", tells=True)
def to_copy(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """A dtype or layout change; a device that it names is the host's own options unless the caller named the device."""
    source = args[0]
    to_device = rt.names_device if rt.names_device is not None else is_sim(source)
    device = kwargs.get("device")
    if device is not None and device.type == "cuda":
        to_device = True
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if to_device != is_sim(source):
        rt.met_a_rule = True
        return copy_to(rt, source, to_device, kwargs.get("dtype"), bool(kwargs.get("non_blocking")))
    return run_kernel(rt, op, args, kwargs)


@rule("aten::is_pinned")
def is_pinned(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> bool:
    return not is_sim(args[0]) and args[0] in rt.pinned


@rule("aten::_pin_memory")
def pin_memory(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> torch.Tensor:
    if is_sim(args[0]):
        raise RuntimeError(
            f"cannot pin '{_type_name(args[0])}' only dense CPU tensors can be pinned",
        )
    pinned = rt.pin(args[0].clone(memory_format=torch.contiguous_format))
    ran_on_host(rt, op, args, kwargs, pinned)
    return pinned


def _type_name(tensor: torch.Tensor) -> str:
    from capfuzz.devices.sim.tensor import type_name

    return type_name(tensor)


def copy_to(rt: Runtime, source: torch.Tensor, to_device: bool, dtype: torch.dtype | None, non_blocking: bool) -> torch.Tensor:
    """`source.to(other device, dtype)`: new memory and a copy. A non-blocking copy to the host makes pinned memory."""
    result = torch.empty_like(plain(source), dtype=dtype, device="cpu", memory_format=torch.preserve_format)
    if to_device:
        allocate(rt, result)
    elif non_blocking:
        rt.pin(result)
        poison.fill(result, poison.CAPTURE if rt.capturing else poison.EAGER)
    transfer(rt, result, source, non_blocking)
    return result


def allocate(rt: Runtime, tensor: torch.Tensor) -> torch.Tensor:
    """Makes fresh plain memory device memory, of the graph's pool when capturing."""
    tag(tensor)
    capture = rt.capturing
    if capture is not None:
        capture.own(tensor)
    poison.fill(tensor, poison.CAPTURE if capture is not None else rt.empty_side)
    return tensor


def transfer(rt: Runtime, destination: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """Copies across the bus, by `copy_kernel_cuda`'s steps when that can be told apart (during capture)."""
    capture = rt.capturing
    if capture is None:
        with nullcontext() if rt.capture is None else rt.capture.set_aside():  # beside a capture, which has run nothing
            destination.copy_(source)
        if rt.tracer is not None:
            rt.tracer.add("copy_", "copy" if rt.capture is None else "at once", destination, read=source)
        return
    capture.check_valid()
    if destination.numel() == 0:
        return
    if not _needs_temporaries(destination, source):
        _move(rt, capture, destination, source, non_blocking)
        return
    copy_op = lookup(torch.ops.aten.copy_.default)
    on_device_first = non_blocking
    if is_sim(source) == on_device_first:
        staged = destination if destination.is_contiguous() else _temporary(rt, destination, destination.dtype)
        moved = _contiguous(rt, _cast(rt, source, destination.dtype), destination)
    else:
        same_dtype = source.dtype == destination.dtype
        staged = destination if destination.is_contiguous() and same_dtype else _temporary(rt, destination, source.dtype)
        moved = _contiguous(rt, source, destination)
    _move(rt, capture, staged, moved, non_blocking)
    if staged is not destination:
        if is_sim(destination):
            rt.launch(copy_op, (destination, staged), {})
        else:
            destination.copy_(staged)


def _needs_temporaries(destination: torch.Tensor, source: torch.Tensor) -> bool:
    if destination.dtype != source.dtype:
        return True
    if destination.shape != source.shape:
        return destination.numel() != 1
    if destination.numel() == 1 or _one_block(destination, source):
        return False
    return not (destination.is_contiguous() and source.is_contiguous())


def _one_block(destination: torch.Tensor, source: torch.Tensor) -> bool:
    """Both lie alike in one block without gaps: the iteration over them is contiguous whatever the order of their dims."""
    if destination.stride() != source.stride():
        return False
    extents = sorted((stride, size) for stride, size in zip(destination.stride(), destination.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in extents:
        if stride != expected:
            return False
        expected *= size
    return True


def _temporary(rt: Runtime, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    memory = torch.empty(like.shape, dtype=dtype)
    return allocate(rt, memory) if is_sim(like) else memory


def _cast(rt: Runtime, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if source.dtype == dtype:
        return source
    if not is_sim(source):
        return source.to(dtype)
    out: torch.Tensor = rt.launch(lookup(torch.ops.aten._to_copy.default), (source,), {"dtype": dtype})
    return out


def _contiguous(rt: Runtime, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    expanded = source.expand_as(destination)
    if expanded.is_contiguous():
        return source if expanded.shape == source.shape else _retag(source, expanded)
    if not is_sim(source):
        return expanded.contiguous()
    out: torch.Tensor = rt.launch(
        lookup(torch.ops.aten.clone.default), (tag(expanded),), {"memory_format": torch.contiguous_format}
    )
    return out


def _retag(source: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return tag(view) if is_sim(source) else view


def _move(rt: Runtime, capture: Capture, destination: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """The memcpy itself, during capture: a node that reads and writes the same host memory at every replay."""
    host = source if is_sim(destination) else destination
    if host not in rt.pinned:
        raise HostCopyError
    if not non_blocking:
        raise capture.invalidate(not_permitted())
    rt.stream.work += 1
    if is_sim(destination):
        capture.save(destination)
        destination.copy_(source)
    capture.add(Node("copy_", "copy", partial(torch.Tensor.copy_, destination, source), [destination], here(rt.frame)))
