"""Writing parts of tensors: assignment through integers, slices, lists, masks and index tensors; ops that write in place."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# One element


@idiom
def set_scalar_0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[0] = 0
    return [s.out]


@idiom
def set_scalar_neg(s: Buffers) -> list[torch.Tensor]:
    s.out[-1] = 5
    return [s.out]


@idiom
def set_scalar_2d_elem(s: Buffers) -> list[torch.Tensor]:
    s.f[0, 0] = 1.5
    return [s.f]


@idiom
def set_scalar_on_0dim(s: Buffers) -> list[torch.Tensor]:
    s.n[...] = 5
    return [s.n]


@idiom
def set_elem_bool(s: Buffers) -> list[torch.Tensor]:
    s.mask[0] = True
    return [s.mask]


@idiom
def set_elem_float_into_int(s: Buffers) -> list[torch.Tensor]:
    s.out[0] = 1.5
    return [s.out]


@idiom
def set_elem_np_scalar(s: Buffers) -> list[torch.Tensor]:
    s.out[0] = s.lens_np[0]
    return [s.out]


@idiom
def set_elem_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[0] = s.lens_cpu[0]
    return [s.out]


@idiom
def set_elem_pinned0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[0] = s.pinned[0]
    return [s.out]


@idiom
def set_elem_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[0] = s.n
    return [s.out]


@idiom
def set_elem_dev_1elem(s: Buffers) -> list[torch.Tensor]:
    s.out[0] = s.x[:1]
    return [s.out]


@idiom
def set_elem_at_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[s.idx_cpu[0]] = s.n
    return [s.out]


@idiom
def set_elem_2d_dev(s: Buffers) -> list[torch.Tensor]:
    s.f[0, 1] = s.f[2, 3]
    return [s.f]


@idiom
def zero_elem(s: Buffers) -> list[torch.Tensor]:
    s.out[0].zero_()
    return [s.out]


@idiom
def fill_scalar(s: Buffers) -> list[torch.Tensor]:
    s.out[0].fill_(0)
    return [s.out]


@idiom
def set_n_index(s: Buffers) -> list[torch.Tensor]:
    s.out[s.n] = 0
    return [s.out]


@idiom
def set_n_index_long(s: Buffers) -> list[torch.Tensor]:
    s.out[s.n.long()] = 0
    return [s.out]


@idiom
def set_n_index_1d(s: Buffers) -> list[torch.Tensor]:
    s.out[s.n.view(1)] = s.x[:1]
    return [s.out]


@idiom
def fold_faulty(s: Buffers) -> list[torch.Tensor]:
    d = torch.diff(s.indptr).repeat_interleave(3)
    out = torch.empty(d.numel() + 1, dtype=s.indptr.dtype, device=s.indptr.device)
    out[0] = 0
    out[1:] = torch.cumsum(d, 0).to(s.indptr.dtype)
    return [out]


@idiom
def fold_fixed(s: Buffers) -> list[torch.Tensor]:
    d = torch.diff(s.indptr).repeat_interleave(3)
    return [F.pad(torch.cumsum(d, 0), (1, 0)).to(s.indptr.dtype)]


# Slices, rows and columns


@idiom
def set_scalar_full(s: Buffers) -> list[torch.Tensor]:
    s.out[:] = 5
    return [s.out]


@idiom
def set_slice_1elem_scalar(s: Buffers) -> list[torch.Tensor]:
    s.out[0:1] = 5
    return [s.out]


@idiom
def set_slice_step(s: Buffers) -> list[torch.Tensor]:
    s.out[1::2] = 3
    return [s.out]


@idiom
def set_slice_n(s: Buffers) -> list[torch.Tensor]:
    s.out[: s.n] = 0
    return [s.out]


@idiom
def set_slice_cpu_bound(s: Buffers) -> list[torch.Tensor]:
    s.out[: s.idx_cpu[0]] = 0
    return [s.out]


@idiom
def set_slice_empty(s: Buffers) -> list[torch.Tensor]:
    s.out[3:3] = 5
    return [s.out]


@idiom
def set_slice_empty_cpu(s: Buffers) -> list[torch.Tensor]:
    s.out[0:0] = s.lens_cpu[:0]
    return [s.out]


@idiom
def set_cpu0dim_slice(s: Buffers) -> list[torch.Tensor]:
    s.out[0:6] = torch.tensor(3)
    return [s.out]


@idiom
def set_slice_lens_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[0:6] = s.lens_cpu[0]
    return [s.out]


@idiom
def set_list_slice(s: Buffers) -> list[torch.Tensor]:
    s.out[0:2] = torch.tensor([1, 2])
    return [s.out]


@idiom
def set_slice_cpu_1elem(s: Buffers) -> list[torch.Tensor]:
    s.out[0:6] = s.lens_cpu[:1]
    return [s.out]


@idiom
def set_slice_list(s: Buffers) -> list[torch.Tensor]:
    s.out[0:2] = [1, 2]  # type: ignore[assignment]
    return [s.out]


@idiom
def set_slice_np(s: Buffers) -> list[torch.Tensor]:
    s.out[0:6] = s.lens_np  # type: ignore[assignment]
    return [s.out]


@idiom
def set_slice_pinned(s: Buffers) -> list[torch.Tensor]:
    s.out[0:6] = s.pinned
    return [s.out]


@idiom
def set_slice_dev(s: Buffers) -> list[torch.Tensor]:
    s.out[0:6] = s.lens
    return [s.out]


@idiom
def set_slice_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[0:6] = s.n
    return [s.out]


@idiom
def set_slice_shifted(s: Buffers) -> list[torch.Tensor]:
    s.x[1:] = s.x[:-1].clone()
    return [s.x]


@idiom
def set_row_scalar(s: Buffers) -> list[torch.Tensor]:
    s.f[0] = 1.5
    return [s.f]


@idiom
def set_column_dtype(s: Buffers) -> list[torch.Tensor]:
    s.f[:, 0] = s.lens
    return [s.f]


@idiom
def set_ellipsis(s: Buffers) -> list[torch.Tensor]:
    s.x[...] = s.lens
    return [s.x]


@idiom
def set_none(s: Buffers) -> list[torch.Tensor]:
    s.x[None] = 3
    return [s.x]


@idiom
def set_true(s: Buffers) -> list[torch.Tensor]:
    s.x[True] = 3
    return [s.x]


@idiom
def set_through_view(s: Buffers) -> list[torch.Tensor]:
    rows = s.out.view(8, 8)
    rows.t()[:6, 1] = s.lens
    return [s.out]


@idiom
def set_elems_loop_host(s: Buffers) -> list[torch.Tensor]:
    for i, length in enumerate(s.lens_cpu.tolist()):
        s.out[i : i + 1] = length
    return [s.out]


# Index lists and tensors


@idiom
def set_cpuidx_scalar(s: Buffers) -> list[torch.Tensor]:
    s.x[s.idx_cpu] = 1
    return [s.x]


@idiom
def set_list_scalar(s: Buffers) -> list[torch.Tensor]:
    s.out[[0, 2]] = 1
    return [s.out]


@idiom
def set_list_dev(s: Buffers) -> list[torch.Tensor]:
    s.out[[0, 2]] = s.x[:2]
    return [s.out]


@idiom
def set_list_empty(s: Buffers) -> list[torch.Tensor]:
    s.out[[]] = s.x[:0]
    return [s.out]


@idiom
def set_np_idx(s: Buffers) -> list[torch.Tensor]:
    s.out[np.array([0, 2])] = s.n
    return [s.out]


@idiom
def set_idx_dev(s: Buffers) -> list[torch.Tensor]:
    s.x[s.idx] = s.lens
    return [s.x]


@idiom
def set_idx_int32(s: Buffers) -> list[torch.Tensor]:
    s.out[s.x] = s.lens
    return [s.out]


@idiom
def set_idx_scalar(s: Buffers) -> list[torch.Tensor]:
    s.out[s.idx] = 7
    return [s.out]


@idiom
def set_idx_float(s: Buffers) -> list[torch.Tensor]:
    s.f[s.idx, 0] = 1.5
    return [s.f]


@idiom
def set_idx_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[s.idx] = s.lens_cpu[0]
    return [s.out]


@idiom
def set_idx_cpu_values(s: Buffers) -> list[torch.Tensor]:
    s.out[s.idx] = s.lens_cpu
    return [s.out]


@idiom
def set_idx_pinned0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[s.idx] = s.pinned[0]
    return [s.out]


@idiom
def set_idx_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.out[s.idx] = s.n
    return [s.out]


@idiom
def set_idx_other_dtype(s: Buffers) -> list[torch.Tensor]:
    s.f[s.idx, 0] = s.lens
    return [s.f]


@idiom
def set_idx_empty(s: Buffers) -> list[torch.Tensor]:
    s.x[s.idx[:0]] = s.lens[:0]
    return [s.x]


@idiom
def set_int_with_idx(s: Buffers) -> list[torch.Tensor]:
    s.f[0, s.idx] = s.f[1, :6]
    return [s.f]


@idiom
def set_idx_rows(s: Buffers) -> list[torch.Tensor]:
    s.f[s.idx] = s.f * 2
    return [s.f]


# Masks


@idiom
def set_mask_2d(s: Buffers) -> list[torch.Tensor]:
    s.f[s.mask] = 0.0
    return [s.f]


@idiom
def set_mask_col(s: Buffers) -> list[torch.Tensor]:
    s.f[s.mask, 0] = 0.0
    return [s.f]


@idiom
def set_mask_second(s: Buffers) -> list[torch.Tensor]:
    s.f[:, s.f[0] > 0] = 0.0
    return [s.f]


@idiom
def set_mask_uint8(s: Buffers) -> list[torch.Tensor]:
    s.x[s.mask.to(torch.uint8)] = 0
    return [s.x]


@idiom
def set_mask_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.x[s.mask] = s.lens_cpu[0]
    return [s.x]


@idiom
def set_mask_cpu_1elem(s: Buffers) -> list[torch.Tensor]:
    s.x[s.mask] = s.lens_cpu[:1]
    return [s.x]


@idiom
def set_mask_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.x[s.mask] = s.n
    return [s.x]


@idiom
def set_mask_dev_1elem(s: Buffers) -> list[torch.Tensor]:
    s.x[s.mask] = s.lens[:1]
    return [s.x]


@idiom
def set_mask_dev(s: Buffers) -> list[torch.Tensor]:
    s.x[s.mask] = s.lens[:3]
    return [s.x]


@idiom
def set_mask_host(s: Buffers) -> list[torch.Tensor]:
    s.x[s.lens_cpu > 1] = 0
    return [s.x]


@idiom
def set_mask_host_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.x[s.lens_cpu > 1] = s.n
    return [s.x]


@idiom
def set_mask_and_idx(s: Buffers) -> list[torch.Tensor]:
    s.f[s.mask, s.idx[:3]] = 0.0
    return [s.f]


@idiom
def set_bool_0dim(s: Buffers) -> list[torch.Tensor]:
    s.x[s.n > 2] = 0
    return [s.x]


# Augmented assignment


@idiom
def inplace_add(s: Buffers) -> list[torch.Tensor]:
    s.x.add_(1)
    return [s.x]


@idiom
def add_to_elem(s: Buffers) -> list[torch.Tensor]:
    s.x[0] += 1
    return [s.x]


@idiom
def add_to_elem_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.x[0] += s.lens_cpu[0]
    return [s.x]


@idiom
def add_to_slice(s: Buffers) -> list[torch.Tensor]:
    s.x[1:4] += 1
    return [s.x]


@idiom
def add_to_idx(s: Buffers) -> list[torch.Tensor]:
    s.x[s.idx[:3]] += 1
    return [s.x]


@idiom
def add_to_n(s: Buffers) -> list[torch.Tensor]:
    s.out[s.n] += 1
    return [s.out]


@idiom
def scale_mask(s: Buffers) -> list[torch.Tensor]:
    s.x[s.mask] *= 2
    return [s.x]


# Ops that write in place


@idiom
def deterministic_index_put(s: Buffers) -> list[torch.Tensor]:
    return [s.x.index_put((s.idx,), s.lens, accumulate=True)]


@idiom
def index_put_repeated(s: Buffers) -> list[torch.Tensor]:
    s.out.index_put_((s.lens.long(),), torch.ones_like(s.lens), accumulate=True)
    return [s.out]


@idiom
def index_put_accumulate_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.x.index_put_((s.idx,), s.n, accumulate=True)
    return [s.x]


@idiom
def index_put_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.x.index_put_((s.idx,), torch.tensor(1, dtype=torch.int32))
    return [s.x]


@idiom
def index_put_mask_accumulate(s: Buffers) -> list[torch.Tensor]:
    s.x.index_put_((s.mask,), torch.tensor(1, dtype=torch.int32), accumulate=True)
    return [s.x]


@idiom
def index_fill(s: Buffers) -> list[torch.Tensor]:
    s.x.index_fill_(0, s.idx[:3], 7)
    return [s.x]


@idiom
def index_fill_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.x.index_fill_(0, s.idx[:3], s.n)
    return [s.x]


@idiom
def index_fill_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.x.index_fill_(0, s.idx[:3], s.lens_cpu[0])
    return [s.x]


@idiom
def index_copy_rows(s: Buffers) -> list[torch.Tensor]:
    s.f.index_copy_(0, s.idx, s.f * 2)
    return [s.f]


@idiom
def index_add_alpha(s: Buffers) -> list[torch.Tensor]:
    s.x.index_add_(0, s.idx, s.lens, alpha=2)
    return [s.x]


@idiom
def masked_fill_rows(s: Buffers) -> list[torch.Tensor]:
    s.f.masked_fill_(s.mask[:, None], float("-inf"))
    return [s.f]


@idiom
def masked_fill_cpu0(s: Buffers) -> list[torch.Tensor]:
    return [s.x.masked_fill(s.mask, torch.tensor(0, dtype=torch.int32))]


@idiom
def masked_fill_lens_cpu0(s: Buffers) -> list[torch.Tensor]:
    s.x.masked_fill_(s.mask, s.lens_cpu[0])
    return [s.x]


@idiom
def masked_fill_dev0(s: Buffers) -> list[torch.Tensor]:
    return [s.x.masked_fill(s.mask, s.n)]


@idiom
def masked_scatter(s: Buffers) -> list[torch.Tensor]:
    s.x.masked_scatter_(s.mask, s.lens)
    return [s.x]


@idiom
def fill_dev0dim(s: Buffers) -> list[torch.Tensor]:
    s.x.fill_(s.n)
    return [s.x]


@idiom
def fill_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    s.x.fill_(s.lens_cpu[0])
    return [s.x]


@idiom
def zero_all(s: Buffers) -> list[torch.Tensor]:
    s.f.zero_()
    return [s.f]


@idiom
def fill_diagonal(s: Buffers) -> list[torch.Tensor]:
    s.f.fill_diagonal_(0.0)
    return [s.f]


@idiom
def where_out(s: Buffers) -> list[torch.Tensor]:
    torch.where(s.mask, s.x, s.lens, out=s.out[:6])
    return [s.out]


@idiom
def where_scalar_written_back(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(torch.where(s.mask, s.x, -1))
    return [s.x]


@idiom
def put(s: Buffers) -> list[torch.Tensor]:
    s.out.put_(s.idx, s.lens, accumulate=True)
    return [s.out]
