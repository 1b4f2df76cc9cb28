"""Reductions, scans and counts; and what the host learns from a result."""

from __future__ import annotations

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# Results that stay on the device


@idiom
def vectorized_sum_bool(s: Buffers) -> list[torch.Tensor]:
    return [s.mask.sum()]


@idiom
def sum_list(s: Buffers) -> list[torch.Tensor]:
    return [sum(s.x)]  # type: ignore[list-item]


@idiom
def sum_dtype(s: Buffers) -> list[torch.Tensor]:
    return [s.x.sum(dtype=torch.int32), s.f.sum(1)]


@idiom
def sum_out(s: Buffers) -> list[torch.Tensor]:
    torch.sum(s.out.view(8, 8)[:, :6], 0, dtype=torch.int32, out=s.x)
    return [s.x]


@idiom
def sum_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.x[:0].sum(), s.f[:0].sum(0)]


@idiom
def max_all(s: Buffers) -> list[torch.Tensor]:
    return [s.x.max(), s.f.min()]


@idiom
def max_dim(s: Buffers) -> list[torch.Tensor]:
    return [s.f.max(dim=1)[1]]


@idiom
def amax_dims(s: Buffers) -> list[torch.Tensor]:
    return [s.f.amax(dim=(0, 1)), s.f.amin(dim=1, keepdim=True)]


@idiom
def aminmax(s: Buffers) -> list[torch.Tensor]:
    return list(torch.aminmax(s.f, dim=1))


@idiom
def argmax_flat(s: Buffers) -> list[torch.Tensor]:
    return [s.f.argmax(), s.f.argmin(dim=1)]


@idiom
def any_all(s: Buffers) -> list[torch.Tensor]:
    return [s.mask.any(), s.x.all(), s.f.gt(0).any(dim=1)]


@idiom
def prod(s: Buffers) -> list[torch.Tensor]:
    return [s.x.prod(), s.f.prod(dim=1)]


@idiom
def mean(s: Buffers) -> list[torch.Tensor]:
    return [s.f.mean(), s.x.float().mean(dim=0)]


@idiom
def std_mean(s: Buffers) -> list[torch.Tensor]:
    return list(torch.std_mean(s.f, dim=1))


@idiom
def vector_norm(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(s.f, dim=1), s.f.norm()]


@idiom
def count_nonzero(s: Buffers) -> list[torch.Tensor]:
    return [torch.count_nonzero(s.x), torch.count_nonzero(s.f, dim=1)]


@idiom
def median(s: Buffers) -> list[torch.Tensor]:
    return [s.f.median()]


@idiom
def median_dim(s: Buffers) -> list[torch.Tensor]:
    return list(s.f.median(dim=1))


@idiom
def kthvalue(s: Buffers) -> list[torch.Tensor]:
    return [torch.kthvalue(s.f, 2)[0]]


@idiom
def mode(s: Buffers) -> list[torch.Tensor]:
    return [s.x.mode()[0]]


@idiom
def topk(s: Buffers) -> list[torch.Tensor]:
    return [torch.topk(s.f, 2)[0]]


@idiom
def topk_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.topk(s.f, s.n)[0]]  # type: ignore[arg-type]


@idiom
def quantile(s: Buffers) -> list[torch.Tensor]:
    return [torch.quantile(s.f, 0.5, dim=1)]


@idiom
def quantile_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.quantile(s.f, s.f[0].sigmoid(), dim=1)]


@idiom
def trapezoid(s: Buffers) -> list[torch.Tensor]:
    return [torch.trapezoid(s.f, dx=0.5)]


@idiom
def cov(s: Buffers) -> list[torch.Tensor]:
    return [torch.cov(s.f[:2])]


# Scans


@idiom
def cumsum(s: Buffers) -> list[torch.Tensor]:
    return [torch.cumsum(s.lens, 0)]


@idiom
def cumsum_out_dtype(s: Buffers) -> list[torch.Tensor]:
    torch.cumsum(s.lens, 0, dtype=torch.int32, out=s.out[1:7])
    return [s.out]


@idiom
def cumsum_in_place(s: Buffers) -> list[torch.Tensor]:
    s.lens.cumsum_(0)
    return [s.lens]


@idiom
def cumsum_empty(s: Buffers) -> list[torch.Tensor]:
    return [torch.cumsum(s.lens[:0], 0)]


@idiom
def cumprod(s: Buffers) -> list[torch.Tensor]:
    return [torch.cumprod(s.x + 1, 0)]


@idiom
def cummax(s: Buffers) -> list[torch.Tensor]:
    return list(torch.cummax(s.f, 1))


@idiom
def logcumsumexp(s: Buffers) -> list[torch.Tensor]:
    return [torch.logcumsumexp(s.f, 1)]


@idiom
def diff(s: Buffers) -> list[torch.Tensor]:
    return [torch.diff(s.indptr), torch.diff(s.f, n=2)]


@idiom
def diff_prepend(s: Buffers) -> list[torch.Tensor]:
    return [torch.diff(s.indptr, prepend=s.indptr.new_zeros(1))]


@idiom
def diff_append(s: Buffers) -> list[torch.Tensor]:
    return [torch.diff(s.indptr[:-1], append=s.indptr[-1:])]


# Sizes that depend on the data


@idiom
def unique(s: Buffers) -> list[torch.Tensor]:
    return [torch.unique(s.x)]


@idiom
def unique_inverse_counts(s: Buffers) -> list[torch.Tensor]:
    return list(torch.unique(s.x, sorted=False, return_inverse=True, return_counts=True))


@idiom
def unique_dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.unique(s.f, dim=0)]


@idiom
def unique_consecutive(s: Buffers) -> list[torch.Tensor]:
    return [torch.unique_consecutive(s.indptr)]


@idiom
def bincount(s: Buffers) -> list[torch.Tensor]:
    return [torch.bincount(s.x)]


@idiom
def bincount_minlength(s: Buffers) -> list[torch.Tensor]:
    return [torch.bincount(s.x, minlength=16)]


@idiom
def bincount_weights(s: Buffers) -> list[torch.Tensor]:
    return [torch.bincount(s.x, weights=s.lens.double(), minlength=16)]


@idiom
def histc(s: Buffers) -> list[torch.Tensor]:
    return [torch.histc(s.f, bins=4)]


@idiom
def histc_minmax(s: Buffers) -> list[torch.Tensor]:
    return [torch.histc(s.f, bins=4, min=-3, max=3)]


@idiom
def histc_int(s: Buffers) -> list[torch.Tensor]:
    return [torch.histc(s.x, bins=9, min=0, max=8)]


@idiom
def repeat_interleave_int(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.x, 3)]


@idiom
def repeat_interleave_tensor2(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.x, s.lens)]


@idiom
def repeat_interleave_output_size(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.x, s.lens, output_size=15)]


@idiom
def repeat_interleave_dim_output_size(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.f, s.lens.long(), dim=0, output_size=15)]


@idiom
def repeat_interleave_repeats(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.lens)]


@idiom
def repeat_interleave_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.x, s.n)]


@idiom
def repeat_interleave_cpu(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.x, s.lens_cpu)]


@idiom
def segment_reduce(s: Buffers) -> list[torch.Tensor]:
    return [torch.segment_reduce(s.out[:15].float(), "sum", lengths=s.lens)]


@idiom
def segment_reduce_unsafe(s: Buffers) -> list[torch.Tensor]:
    return [torch.segment_reduce(s.out[:15].float(), "max", lengths=s.lens, unsafe=True)]


# What the host asks


@idiom
def int_(s: Buffers) -> list[torch.Tensor]:
    v = int(s.n)
    return [s.x + v]


@idiom
def float_(s: Buffers) -> list[torch.Tensor]:
    return [s.f * float(s.f[0, 0])]


@idiom
def bool_(s: Buffers) -> list[torch.Tensor]:
    return [s.x + (1 if s.n > 2 else 0)]


@idiom
def sum_item(s: Buffers) -> list[torch.Tensor]:
    return [s.out[: s.lens[:2].sum().item()]]


@idiom
def max_item(s: Buffers) -> list[torch.Tensor]:
    return [torch.arange(int(s.lens.max()), device=s.dev)]


@idiom
def is_nonzero(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(torch.is_nonzero(s.n))]


@idiom
def equal(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(torch.equal(s.x, s.lens))]


@idiom
def equal_itself(s: Buffers) -> list[torch.Tensor]:
    """The same memory on both sides: nothing needs to be read."""
    return [s.x + int(torch.equal(s.x, s.x))]


@idiom
def equal_other_shape(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(torch.equal(s.x, s.indptr))]


@idiom
def allclose(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(torch.allclose(s.f, s.f))]


@idiom
def isnan_any(s: Buffers) -> list[torch.Tensor]:
    if torch.isnan(s.f).any():
        raise ValueError("not a number")
    return [s.f + 1]


@idiom
def contains(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(3 in s.x)]


@idiom
def builtin_max(s: Buffers) -> list[torch.Tensor]:
    return [max(s.x)]


@idiom
def where_any(s: Buffers) -> list[torch.Tensor]:
    """A choice that the host need not make."""
    return [torch.where((s.lens > 4).any(), s.x * 2, s.x)]


@idiom
def assert_async(s: Buffers) -> list[torch.Tensor]:
    torch._assert_async(s.n > 0)
    return [s.x + 1]


@idiom
def assert_async_message(s: Buffers) -> list[torch.Tensor]:
    torch._assert_async((s.lens >= 0).all(), "lengths are never negative")
    return [s.x + 1]


# What the host knows without asking


@idiom
def len_(s: Buffers) -> list[torch.Tensor]:
    return [s.x + len(s.x)]


@idiom
def shape_arithmetic(s: Buffers) -> list[torch.Tensor]:
    rows, columns = s.f.shape
    return [s.x + s.f.numel() // rows + columns * s.f.element_size() + s.f.stride(0)]


@idiom
def facts_in_if(s: Buffers) -> list[torch.Tensor]:
    if s.x.is_cuda and s.x.is_contiguous() and not s.x.is_floating_point() and s.x.device == s.dev and s.x.dim() == 1:
        return [s.x + 1]
    return [s.x]
