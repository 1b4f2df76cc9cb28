"""Copies between pageable memory, pinned memory and the device; conversions; and host work in the middle of a capture."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# Pageable to device


@idiom
def cpu_copy(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.lens_cpu)
    return [s.x]


@idiom
def cpu_copy_nb(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.lens_cpu, non_blocking=True)
    return [s.x]


@idiom
def cpu_copy_0dim(s: Buffers) -> list[torch.Tensor]:
    s.n.copy_(s.lens_cpu[0])
    return [s.n]


@idiom
def cpu_copy_0dim_broadcast(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.lens_cpu[0])
    return [s.x]


@idiom
def cpu_copy_empty(s: Buffers) -> list[torch.Tensor]:
    s.x[:0].copy_(s.lens_cpu[:0])
    return [s.x]


@idiom
def np_copy(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(torch.from_numpy(s.lens_np), non_blocking=True)
    return [s.x]


@idiom
def to_dev_nb(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.to(s.dev, non_blocking=True)]


@idiom
def to_dev_dtype(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.to(s.dev, torch.int64)]


@idiom
def to_dev_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu[:0].to(s.dev)]


@idiom
def to_like_dev(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.to(s.x)]


@idiom
def cuda_call(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.cuda()]


@idiom
def type_as_dev(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.type_as(s.x)]


@idiom
def type_by_name(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.type("torch.cuda.IntTensor")]


# Pinned to device


@idiom
def pin_copy(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.pinned)
    return [s.x]


@idiom
def pin_copy_nb(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.pinned, non_blocking=True)
    return [s.x]


@idiom
def pin_copy_slice_nb(s: Buffers) -> list[torch.Tensor]:
    s.x[:3].copy_(s.pinned[:3], non_blocking=True)
    return [s.x]


@idiom
def pin_copy_0dim_nb(s: Buffers) -> list[torch.Tensor]:
    s.n.copy_(s.pinned[2], non_blocking=True)
    return [s.n]


@idiom
def pin_copy_0dim_broadcast_nb(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.pinned[0], non_blocking=True)
    return [s.x]


@idiom
def pin_copy_broadcast_nb(s: Buffers) -> list[torch.Tensor]:
    s.out.view(8, 8)[:, :6].copy_(s.pinned, non_blocking=True)
    return [s.out]


@idiom
def pin_copy_strided_nb(s: Buffers) -> list[torch.Tensor]:
    s.out.view(8, 8)[:6, 0].copy_(s.pinned, non_blocking=True)
    return [s.out]


@idiom
def pin_copy_strided_source_nb(s: Buffers) -> list[torch.Tensor]:
    s.x[:3].copy_(s.pinned[::2], non_blocking=True)
    return [s.x]


@idiom
def pin_copy_same_strides_nb(s: Buffers) -> list[torch.Tensor]:
    """Both sides are transposed alike: one block of memory, although neither is contiguous."""
    s.x.view(2, 3).t().copy_(s.pinned.view(2, 3).t(), non_blocking=True)
    return [s.x]


@idiom
def pin_copy_transposed_nb(s: Buffers) -> list[torch.Tensor]:
    s.x.view(2, 3).t().copy_(s.pinned.view(3, 2), non_blocking=True)
    return [s.x]


@idiom
def pin_copy_dtype_nb(s: Buffers) -> list[torch.Tensor]:
    s.f[0, :6].copy_(s.pinned, non_blocking=True)
    return [s.f]


@idiom
def pin_copy_empty(s: Buffers) -> list[torch.Tensor]:
    s.x[:0].copy_(s.pinned[:0])
    return [s.x]


@idiom
def pin_to_dev(s: Buffers) -> list[torch.Tensor]:
    return [s.pinned.to(s.dev)]


@idiom
def pin_to_dev_nb(s: Buffers) -> list[torch.Tensor]:
    return [s.pinned.to(s.dev, non_blocking=True)]


@idiom
def pin_to_dev_dtype_nb(s: Buffers) -> list[torch.Tensor]:
    return [s.pinned.to(s.dev, torch.int64, non_blocking=True)]


@idiom
def pin_converted_to_dev_nb(s: Buffers) -> list[torch.Tensor]:
    """What a host op makes of a pinned tensor is not pinned."""
    return [s.pinned.long().to(s.dev, non_blocking=True)]


@idiom
def pin_again_to_dev_nb(s: Buffers) -> list[torch.Tensor]:
    return [s.pinned.pin_memory().to(s.dev, non_blocking=True)]


@idiom
def foreach_copy_pinned_nb(s: Buffers) -> list[torch.Tensor]:
    torch._foreach_copy_([s.x, s.out[:3]], [s.pinned, s.pinned[3:]], non_blocking=True)
    return [s.x, s.out]


# Pinned memory that is made or written during the capture


@idiom
def pin_memory_call(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.pin_memory().to(s.dev, non_blocking=True)]


@idiom
def empty_pinned_filled(s: Buffers) -> list[torch.Tensor]:
    staging = torch.empty(6, dtype=torch.int32, pin_memory=True)
    staging.copy_(s.lens_cpu)
    s.x.copy_(staging, non_blocking=True)
    return [s.x]


@idiom
def empty_pinned_filled_through_np(s: Buffers) -> list[torch.Tensor]:
    staging = torch.empty(6, dtype=torch.int32, pin_memory=True)
    np.cumsum(s.lens_np, out=staging.numpy())
    return [staging.to(s.dev, non_blocking=True)]


@idiom
def pinned_host_write_then_copy(s: Buffers) -> list[torch.Tensor]:
    s.pinned[:] = s.lens_cpu
    s.x.copy_(s.pinned, non_blocking=True)
    return [s.x]


@idiom
def pinned_np_write_then_copy(s: Buffers) -> list[torch.Tensor]:
    s.pinned.numpy()[:] = s.lens_np
    s.x.copy_(s.pinned, non_blocking=True)
    return [s.x]


@idiom
def pinned_write_after_copy(s: Buffers) -> list[torch.Tensor]:
    """The next step's data goes into the staging buffer while the copy is only recorded."""
    s.x.copy_(s.pinned, non_blocking=True)
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().synchronize()
    s.pinned.zero_()
    return [s.x]


@idiom
def is_pinned_call(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(s.pinned.is_pinned()) + 2 * int(s.lens_cpu.is_pinned())]


# Device to host


@idiom
def cpu_call(s: Buffers) -> list[torch.Tensor]:
    return [s.x.cpu()]


@idiom
def cpu_nonblocking(s: Buffers) -> list[torch.Tensor]:
    return [s.x.to("cpu", non_blocking=True)]


@idiom
def cpu_nonblocking_dtype(s: Buffers) -> list[torch.Tensor]:
    return [s.x.to("cpu", torch.int64, non_blocking=True)]


@idiom
def cpu_nonblocking_strided(s: Buffers) -> list[torch.Tensor]:
    return [s.f.t()[::2].to("cpu", non_blocking=True)]


@idiom
def cpu_nonblocking_host_read(s: Buffers) -> list[torch.Tensor]:
    host = s.x.to("cpu", non_blocking=True)
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().synchronize()
    return [host, host + 0]


@idiom
def cpu_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.x[:0].cpu()]


@idiom
def numpy_(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(s.x.cpu().numpy().sum())]


@idiom
def numpy_direct(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(s.x.numpy().sum())]


@idiom
def numpy_force(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(s.x.numpy(force=True).sum())]


@idiom
def item(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.n.item()]


@idiom
def tolist(s: Buffers) -> list[torch.Tensor]:
    return [s.x + max(s.lens.tolist())]


@idiom
def tolist_0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.n.tolist()]  # type: ignore[operator]


@idiom
def cpu_copy_from_dev_nb(s: Buffers) -> list[torch.Tensor]:
    s.lens_cpu.copy_(s.x, non_blocking=True)
    return [s.x + 1]


@idiom
def pin_copy_from_dev(s: Buffers) -> list[torch.Tensor]:
    s.pinned.copy_(s.x)
    return [s.pinned]


@idiom
def pin_copy_from_dev_nb(s: Buffers) -> list[torch.Tensor]:
    s.pinned.copy_(s.x, non_blocking=True)
    return [s.pinned]


@idiom
def pin_copy_from_dev_dtype_nb(s: Buffers) -> list[torch.Tensor]:
    s.pinned.copy_(s.idx, non_blocking=True)
    return [s.pinned]


@idiom
def pin_copy_from_dev_strided_nb(s: Buffers) -> list[torch.Tensor]:
    s.pinned[::2].copy_(s.x[:3], non_blocking=True)
    return [s.pinned]


@idiom
def pin_copy_from_dev_broadcast_nb(s: Buffers) -> list[torch.Tensor]:
    s.pinned.copy_(s.n, non_blocking=True)
    return [s.pinned]


@idiom
def pin_set_slice_from_dev(s: Buffers) -> list[torch.Tensor]:
    s.pinned[:3] = s.x[:3]
    return [s.pinned]


@idiom
def pin_copy_from_dev_host_read(s: Buffers) -> list[torch.Tensor]:
    s.pinned.copy_(s.x, non_blocking=True)
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().synchronize()
    return [s.lens + int(s.pinned[0])]


@idiom
def pin_there_and_back_nb(s: Buffers) -> list[torch.Tensor]:
    s.pinned.copy_(s.lens, non_blocking=True)
    s.x.copy_(s.pinned, non_blocking=True)
    return [s.x]


# Device to device


@idiom
def dev_copy(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.lens)
    return [s.x]


@idiom
def dev_copy_dtype(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.idx)
    return [s.x]


@idiom
def dev_copy_broadcast(s: Buffers) -> list[torch.Tensor]:
    s.f.copy_(s.f[0] * 2)
    return [s.f]


@idiom
def dev_foreach_copy(s: Buffers) -> list[torch.Tensor]:
    torch._foreach_copy_([s.x, s.out[:6]], [s.lens, s.lens])
    return [s.x, s.out]


@idiom
def to_dtype(s: Buffers) -> list[torch.Tensor]:
    return [s.x.to(torch.float32), s.x.double(), s.f.long()]


@idiom
def to_dtype_same(s: Buffers) -> list[torch.Tensor]:
    """Nothing to convert: the result is the very same tensor, and shows later writes."""
    same = s.x.to(torch.int32)
    s.x.add_(1)
    return [same]


@idiom
def to_dev_same(s: Buffers) -> list[torch.Tensor]:
    same = s.x.to(s.dev, non_blocking=True)
    s.x.add_(1)
    return [same]


@idiom
def to_dev_same_copy(s: Buffers) -> list[torch.Tensor]:
    before = s.x.to(s.dev, copy=True)
    s.x.add_(1)
    return [before]


@idiom
def clone(s: Buffers) -> list[torch.Tensor]:
    before = s.x.clone()
    s.x.add_(1)
    return [before]


@idiom
def detach(s: Buffers) -> list[torch.Tensor]:
    alias = s.x.detach()
    s.x.add_(1)
    return [alias]


@idiom
def contiguous_transposed(s: Buffers) -> list[torch.Tensor]:
    return [s.f.t().contiguous()]


@idiom
def deepcopy(s: Buffers) -> list[torch.Tensor]:
    return [copy.deepcopy(s.x)]


@idiom
def pickled(s: Buffers) -> list[torch.Tensor]:
    return [s.x + len(pickle.dumps(s.lens))]


# Host work during the capture


@idiom
def host_mutate(s: Buffers) -> list[torch.Tensor]:
    s.indptr_cpu.zero_()
    s.indptr.zero_()
    return [s.indptr]


@idiom
def host_temporary(s: Buffers) -> list[torch.Tensor]:
    s.lens_cpu.add(1).cumsum(0)
    return [s.x + 1]


@idiom
def host_np_mutate(s: Buffers) -> list[torch.Tensor]:
    s.lens_np += 1
    return [s.x + 1]


@idiom
def host_np_mutate_used(s: Buffers) -> list[torch.Tensor]:
    s.lens_np += 1
    return [s.x + int(s.lens_np[0])]


@idiom
def host_pinned_mutate(s: Buffers) -> list[torch.Tensor]:
    s.pinned.add_(1)
    return [s.x + 1]


@idiom
def host_result(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu.cumsum(0)]


@idiom
def host_list(s: Buffers) -> list[torch.Tensor]:
    pages = [-(-length // 2) for length in s.lens_np.tolist()]
    return [s.x + pages[0]]


@idiom
def host_branch(s: Buffers) -> list[torch.Tensor]:
    if s.lens_cpu[0] > 2:
        return [s.x + s.lens]
    return [s.x - s.lens]
