"""Ops that make the host wait for the device, because the host must read a value before it can go on.

`reads` ops bring a value to the host through pinned memory and wait for the stream: "operation not permitted when stream is
capturing". `copies` ops bring it through pageable memory, which PyTorch itself refuses during capture. Which op does which
was measured on an H200 (torch 2.11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capfuzz.devices.errors import HostCopyError
from capfuzz.devices.sim.kernels import Args, Kwargs, run_kernel, scan
from capfuzz.devices.sim.ops import Op, rule

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime


def read_on_host(rt: Runtime) -> None:
    """The host waits for a device value. During capture that invalidates the capture."""
    if rt.capturing is not None:
        rt.capturing.check_valid()
    rt.refuse_in_capture()


def copy_to_host(rt: Runtime) -> None:
    """A device value goes to pageable host memory. During capture PyTorch refuses."""
    if rt.capturing is not None:
        rt.capturing.check_valid()
        raise HostCopyError


def _on_device(args: Args, kwargs: Kwargs) -> bool:
    return scan(args, []) or scan(kwargs.values(), [])


@rule("aten::_local_scalar_dense")
def local_scalar_dense(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """`item()`, `bool()`, `int()`, an index or slice bound taken from a device tensor."""
    if _on_device(args, kwargs):
        read_on_host(rt)
    return op.call(*args, **kwargs)


@rule(
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::unique_dim_consecutive",
    "aten::equal",
    "aten::allclose",
    "aten::_linalg_check_errors",
    "aten::to_sparse",
    "aten::_to_sparse",
    "aten::_linalg_eigvals",
    "aten::linalg_eig",
)
def sized_by_values(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """The size of the result, or the error to raise, depends on values that the device holds."""
    if _on_device(args, kwargs):
        read_on_host(rt)
    return run_kernel(rt, op, args, kwargs)


@rule("aten::repeat_interleave.Tensor")
def repeat_interleave(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Without `output_size` the host reads the sum of the repeats."""
    output_size = kwargs.get("output_size", args[1] if len(args) > 1 else None)
    if output_size is None and _on_device(args, kwargs):
        read_on_host(rt)
    return run_kernel(rt, op, args, kwargs)


@rule(
    "aten::bincount", "aten::_linalg_svd", "aten::linalg_lstsq", "aten::_linalg_eigh", "aten::_nested_tensor_from_tensor_list"
)
def sized_through_pageable(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    if _on_device(args, kwargs):
        copy_to_host(rt)
    return run_kernel(rt, op, args, kwargs)


@rule("aten::histc")
def histc(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """With `min == max` the bounds are the data's own, and come to the host."""
    low = args[2] if len(args) > 2 else kwargs.get("min", 0)
    high = args[3] if len(args) > 3 else kwargs.get("max", 0)
    if low == high and _on_device(args, kwargs):
        copy_to_host(rt)
    return run_kernel(rt, op, args, kwargs)
