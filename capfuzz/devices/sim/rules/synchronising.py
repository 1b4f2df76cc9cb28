"""Ops that make the host wait for the device, because the host must read a value before it can go on.

`reads` ops bring a value to the host through pinned memory and wait for the stream: "operation not permitted when stream is
capturing". `copies` ops bring it through pageable memory, which PyTorch itself refuses during capture. Which op does which
was measured on an H200 (torch 2.11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capfuzz.devices.errors import CudaError, HostCopyError, ThrustError
from capfuzz.devices.sim.kernels import Args, Kwargs, run_factory, run_kernel, scan
from capfuzz.devices.sim.ops import Op, rule
from capfuzz.devices.sim.tensor import is_sim, plain

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime

Read = Callable[["Runtime"], None]


def read_on_host(rt: Runtime) -> None:
    """The host waits for a device value. During capture that invalidates the capture."""
    if rt.checks_of_the_cpu:
        return
    if rt.capturing is not None:
        rt.capturing.check_valid()
    rt.wait_for_current_stream()


def wait_in_thrust(rt: Runtime, algorithm: str) -> None:
    """The host waits inside a Thrust algorithm, whose own exception says so."""
    if rt.capturing is not None:
        rt.capturing.check_valid()
    try:
        rt.wait_for_current_stream()
    except CudaError as error:
        raise ThrustError(algorithm) from error


def copy_to_host(rt: Runtime) -> None:
    """A device value goes to pageable host memory. During capture PyTorch refuses."""
    if rt.capturing is not None:
        rt.capturing.check_valid()
        raise HostCopyError


def _on_device(args: Args, kwargs: Kwargs) -> bool:
    return scan(args, []) or scan(kwargs.values(), [])


def _run_read(rt: Runtime, op: Op, args: Args, kwargs: Kwargs, reads: bool = True, read: Read = read_on_host) -> Any:
    """A kernel whose values the host reads first, if it `reads` them: it refuses those that the kernel would assert about."""
    reads = reads and _on_device(args, kwargs)
    if reads:
        read(rt)
    return run_kernel(rt, op, args, kwargs, host_has_read=reads)


@rule("aten::_local_scalar_dense")
def local_scalar_dense(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """`item()`, `bool()`, `int()`, an index or slice bound taken from a device tensor."""
    if _on_device(args, kwargs):
        read_on_host(rt)
    return op.call(*args, **kwargs)


@rule(
    "aten::nonzero",
    "aten::masked_select",
    "aten::allclose",
    "aten::_linalg_check_errors",
    "aten::to_sparse",
    "aten::_to_sparse",
    "aten::_linalg_eigvals",
    "aten::linalg_eig",
)
def sized_by_values(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """The size of the result, or the error to raise, depends on values that the device holds."""
    return _run_read(rt, op, args, kwargs)


@rule("aten::_unique", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim_consecutive")
def unique(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Of nothing, the answer is known without looking (`Unique.cu`); `nonzero` of nothing is launched and waited for."""
    return _run_read(rt, op, args, kwargs, args[0].numel() > 0)


@rule("aten::unique_dim")
def unique_dim(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Sorts the slices with Thrust, which waits."""
    if args[0].numel() and _on_device(args, kwargs):
        wait_in_thrust(rt, "merge_sort")
    return run_kernel(rt, op, args, kwargs)


_LONGEST_FUSED_MODE = 2048  # elements of a row: `TensorModeKernel.cpp`, 2 * MAX_BLOCK_SIZE


@rule("aten::mode")
def mode(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """One fused kernel for short rows; for longer ones Thrust, which waits."""
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if is_sim(tensor) and tensor.dim() and tensor.shape[dim] > _LONGEST_FUSED_MODE:
        wait_in_thrust(rt, "transform")
    return run_kernel(rt, op, args, kwargs)


@rule("aten::equal")
def equal(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """`cuda_equal` answers from the shapes, or for one memory on both sides, without reading."""
    left, right = args
    if _on_device(args, kwargs) and left.shape == right.shape and left.numel():
        same_memory = left.data_ptr() == right.data_ptr() and left.stride() == right.stride() and not left.is_floating_point()
        if not (same_memory and not left.is_complex()):
            read_on_host(rt)
    return run_kernel(rt, op, args, kwargs)


@rule("aten::isin.Tensor_Tensor")
def isin(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Many test elements are sorted, and the elements made unique first (`TensorCompare.cpp`)."""
    elements, tested = args[0], args[1]
    unique = args[2] if len(args) > 2 else kwargs.get("assume_unique", False)
    if _on_device(args, kwargs) and elements.numel() and not unique:
        if tested.numel() >= int(10 * elements.numel() ** 0.145):
            read_on_host(rt)
    return run_kernel(rt, op, args, kwargs)


@rule("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """The bounds of a sorter are checked on the host."""
    return _run_read(rt, op, args, kwargs, kwargs.get("sorter") is not None)


@rule("aten::segment_reduce")
def segment_reduce(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Unless told `unsafe`, the lengths are checked on the host."""
    return _run_read(rt, op, args, kwargs, not kwargs.get("unsafe", False))


@rule(*(f"aten::normal.{kind}{out}" for kind in ("Tensor_Tensor", "float_Tensor") for out in ("", "_out")))
def normal(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """A tensor of standard deviations is searched for a negative one, unless it is empty (`DistributionTemplates.h`)."""
    return _run_read(rt, op, args, kwargs, args[1].numel() > 0)


@rule(
    *(
        f"aten::{name}.{kind}"
        for name in ("linspace", "logspace")
        for kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    )
)
def range_with_tensor_bounds(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Bounds are read with `item()`, wherever they are."""
    if _on_device(args, kwargs):
        read_on_host(rt)
    return run_factory(rt, op, tuple(plain(a) if is_sim(a) else a for a in args), kwargs)


@rule("aten::repeat_interleave.Tensor")
def repeat_interleave(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Without `output_size` the host reads the sum of the repeats, unless there are none (`Repeat.cpp`)."""
    output_size = kwargs.get("output_size", args[1] if len(args) > 1 else None)
    return _run_read(rt, op, args, kwargs, output_size is None and args[0].numel() > 0)


@rule("aten::bincount", "aten::_linalg_eigh")
def returns_early_through_pageable(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    """Given nothing, they return before they look: `bincount` for the largest value (`SummaryOps.cu`)."""
    return _run_read(rt, op, args, kwargs, args[0].numel() > 0, copy_to_host)


@rule(
    "aten::_ctc_loss",  # the lengths
    "aten::_linalg_svd",
    "aten::linalg_lstsq",
    "aten::linalg_matrix_exp",
    "aten::_nested_tensor_from_tensor_list",
)
def sized_through_pageable(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    return _run_read(rt, op, args, kwargs, read=copy_to_host)
