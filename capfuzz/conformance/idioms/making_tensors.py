"""New tensors: from host data, filled, counted, joined, padded; and what of an allocation is read before it is written."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# From host data


@idiom
def tensor_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor([1, 2, 3], device=s.dev)]


@idiom
def tensor_scalar_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor(3, device=s.dev)]


@idiom
def tensor_empty_list(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor([], dtype=torch.int32, device=s.dev)]


@idiom
def tensor_nested_dtype(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor([[1, 2], [3, 4]], dtype=torch.float32, device=s.dev)]


@idiom
def tensor_np(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor(s.lens_np, device=s.dev)]


@idiom
def tensor_pinned_list(s: Buffers) -> list[torch.Tensor]:
    lengths = s.lens_cpu.tolist()
    return [torch.tensor(lengths, dtype=torch.int32, pin_memory=True).to(s.dev, non_blocking=True)]


@idiom
def tensor_pinned_constants(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor([1, 2, 3], pin_memory=True).to(s.dev, non_blocking=True)]


@idiom
def tensor_of_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor(s.n)]


@idiom
def tensor_of_dev_scalars(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor([s.x[0], s.x[1]], device=s.dev)]


@idiom
def tensor_of_cpu_for_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.tensor(s.lens_cpu, device=s.dev)]


@idiom
def as_tensor_list(s: Buffers) -> list[torch.Tensor]:
    return [torch.as_tensor([1, 2, 3], device=s.dev)]


@idiom
def as_tensor_np(s: Buffers) -> list[torch.Tensor]:
    return [torch.as_tensor(s.lens_np, device=s.dev)]


@idiom
def as_tensor_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.as_tensor(s.x, device=s.dev)]


@idiom
def asarray_np(s: Buffers) -> list[torch.Tensor]:
    return [torch.asarray(s.lens_np, device=s.dev)]


@idiom
def asarray_copy_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.asarray(s.x, copy=True)]


@idiom
def from_numpy_to_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.from_numpy(s.lens_np).to(s.dev, non_blocking=True)]


@idiom
def new_tensor(s: Buffers) -> list[torch.Tensor]:
    return [s.x.new_tensor([1, 2])]


@idiom
def new_tensor_dev(s: Buffers) -> list[torch.Tensor]:
    return [s.x.new_tensor(s.lens)]


@idiom
def legacy_constructor(s: Buffers) -> list[torch.Tensor]:
    return [torch.cuda.IntTensor([1, 2, 3])]  # type: ignore[attr-defined]


@idiom
def tensor_in_device_context(s: Buffers) -> list[torch.Tensor]:
    with torch.device("cuda"):
        return [torch.tensor([1, 2, 3])]


# Filled


@idiom
def zeros_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros(3, device=s.dev)]


@idiom
def setattr_device(s: Buffers) -> list[torch.Tensor]:
    return [torch.ones(3, device="cuda") if s.dev.type == "cuda" else torch.ones(3)]


@idiom
def zeros_device_index(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros(3, device=0)]


@idiom
def zeros_in_device_context(s: Buffers) -> list[torch.Tensor]:
    with torch.device("cuda"):
        return [torch.zeros(3)]


@idiom
def zeros_like(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros_like(s.f, dtype=torch.int64)]


@idiom
def zeros_like_cpu_for_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros_like(s.lens_cpu, device=s.dev)]


@idiom
def zeros_out(s: Buffers) -> list[torch.Tensor]:
    torch.zeros(6, out=s.x)
    return [s.x]


@idiom
def zeros_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros(s.n, device=s.dev)]  # type: ignore[call-overload]


@idiom
def zeros_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros(s.lens_cpu[0], device=s.dev)]  # type: ignore[call-overload]


@idiom
def big_alloc(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros(64 << 20, device=s.dev)[:4]]


@idiom
def new_ones(s: Buffers) -> list[torch.Tensor]:
    return [s.x.new_ones(2, 3)]


@idiom
def new_full(s: Buffers) -> list[torch.Tensor]:
    return [s.x.new_full((3,), -1)]


@idiom
def full_int(s: Buffers) -> list[torch.Tensor]:
    return [torch.full((3,), 5, device=s.dev)]


@idiom
def full_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.full((3,), s.n, device=s.dev)]  # type: ignore[call-overload]


@idiom
def full_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.full((3,), s.lens_cpu[0], device=s.dev)]  # type: ignore[call-overload]


@idiom
def full_like_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.full_like(s.x, s.n)]  # type: ignore[arg-type]


@idiom
def full_like_float(s: Buffers) -> list[torch.Tensor]:
    return [torch.full_like(s.f, float("-inf"))]


@idiom
def scalar_tensor(s: Buffers) -> list[torch.Tensor]:
    return [torch.scalar_tensor(3, device=s.dev)]


@idiom
def stack_of_full(s: Buffers) -> list[torch.Tensor]:
    return [torch.stack([torch.full((), v, device=s.dev) for v in (1, 2)])]


@idiom
def eye(s: Buffers) -> list[torch.Tensor]:
    return [torch.eye(4, 6, device=s.dev)]


# Counted


@idiom
def arange_int(s: Buffers) -> list[torch.Tensor]:
    return [torch.arange(6, device=s.dev, dtype=torch.int32)]


@idiom
def arange_float_step(s: Buffers) -> list[torch.Tensor]:
    return [torch.arange(0, 1, 0.25, device=s.dev)]


@idiom
def arange_out(s: Buffers) -> list[torch.Tensor]:
    torch.arange(0, 6, out=s.x)
    return [s.x]


@idiom
def arange_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.arange(s.n, device=s.dev)]  # type: ignore[call-overload]


@idiom
def arange_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.arange(s.lens_cpu[0], device=s.dev)]  # type: ignore[call-overload]


@idiom
def linspace(s: Buffers) -> list[torch.Tensor]:
    return [torch.linspace(0, 1, 5, device=s.dev)]


@idiom
def linspace_dev_bound(s: Buffers) -> list[torch.Tensor]:
    return [torch.linspace(0, s.n, 5, device=s.dev)]


@idiom
def logspace(s: Buffers) -> list[torch.Tensor]:
    return [torch.logspace(0, 3, 4, base=2.0, device=s.dev)]


@idiom
def tril_indices(s: Buffers) -> list[torch.Tensor]:
    return [torch.tril_indices(4, 4, device=s.dev)]


# Allocated, then written


@idiom
def empty_unwritten(s: Buffers) -> list[torch.Tensor]:
    return [torch.empty(4, device=s.dev, dtype=torch.int32)]


@idiom
def empty_partly_written(s: Buffers) -> list[torch.Tensor]:
    """The rest of the allocation is never read."""
    padded = torch.empty(64, device=s.dev, dtype=torch.int32)
    padded[:6] = s.lens
    return [padded[:6] + 1]


@idiom
def empty_like_filled(s: Buffers) -> list[torch.Tensor]:
    return [torch.empty_like(s.x).fill_(2)]


@idiom
def empty_strided_copied(s: Buffers) -> list[torch.Tensor]:
    columns = torch.empty_strided((2, 3), (1, 2), dtype=torch.int32, device=s.dev)
    columns.copy_(s.x.view(2, 3))
    return [columns]


@idiom
def new_empty_zero_size(s: Buffers) -> list[torch.Tensor]:
    return [s.x.new_empty(0), s.x.new_empty((0, 8))]


@idiom
def empty_masked_before_use(s: Buffers) -> list[torch.Tensor]:
    """Unwritten elements are computed with, and then dropped."""
    rows = torch.empty(12, device=s.dev, dtype=torch.int32)
    rows[:6] = s.x
    keep = torch.arange(12, device=s.dev) < 6
    return [torch.where(keep, rows + 1, 0)]


# Joined and padded


@idiom
def cat(s: Buffers) -> list[torch.Tensor]:
    return [torch.cat([s.x.new_zeros(1), torch.cumsum(s.lens, 0)])]


@idiom
def cat_cpu(s: Buffers) -> list[torch.Tensor]:
    return [torch.cat([torch.zeros(1, dtype=torch.int32), s.x])]


@idiom
def cat_out(s: Buffers) -> list[torch.Tensor]:
    torch.cat([s.x, s.lens], out=s.out[:12])
    return [s.out]


@idiom
def cat_with_empty(s: Buffers) -> list[torch.Tensor]:
    return [torch.cat([s.x[:0], s.x, s.lens[:2]])]


@idiom
def cat_dtypes(s: Buffers) -> list[torch.Tensor]:
    return [torch.cat([s.x, s.idx])]


@idiom
def stack(s: Buffers) -> list[torch.Tensor]:
    return [torch.stack([s.x, s.lens])]


@idiom
def stack_elems(s: Buffers) -> list[torch.Tensor]:
    return [torch.stack([s.x[0], s.n, s.lens.sum(dtype=torch.int32)])]


@idiom
def block_diag(s: Buffers) -> list[torch.Tensor]:
    return [torch.block_diag(s.f, s.f)]


@idiom
def pad_value(s: Buffers) -> list[torch.Tensor]:
    return [F.pad(s.x, (1, 2), value=-1)]


@idiom
def pad_to_n(s: Buffers) -> list[torch.Tensor]:
    return [F.pad(s.x, (0, s.n))]  # type: ignore[arg-type]


@idiom
def pad_to_host_length(s: Buffers) -> list[torch.Tensor]:
    return [F.pad(s.x, (0, 8 - int(s.lens_np[0])), value=-1)]


# Products and combinations


@idiom
def cartesian(s: Buffers) -> list[torch.Tensor]:
    return [torch.cartesian_prod(s.x, s.lens)]


@idiom
def combinations(s: Buffers) -> list[torch.Tensor]:
    return [torch.combinations(s.x)]


@idiom
def meshgrid(s: Buffers) -> list[torch.Tensor]:
    return list(torch.meshgrid(s.x, s.lens, indexing="ij"))


@idiom
def complex_pair(s: Buffers) -> list[torch.Tensor]:
    return [torch.complex(s.f, s.f)]
