"""Reading parts of tensors: integers, slices, lists, arrays, masks and index tensors, and the ops that read by index."""

from __future__ import annotations

import numpy as np
import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# Positions and slices that the host knows


@idiom
def get_int(s: Buffers) -> list[torch.Tensor]:
    return [s.x[0], s.x[-1]]


@idiom
def get_step_slice(s: Buffers) -> list[torch.Tensor]:
    return [s.x[1:5:2]]


@idiom
def get_empty_slice(s: Buffers) -> list[torch.Tensor]:
    return [s.x[3:3]]


@idiom
def get_ellipsis(s: Buffers) -> list[torch.Tensor]:
    return [s.f[..., 0]]


@idiom
def get_none(s: Buffers) -> list[torch.Tensor]:
    return [s.x[None, :, None]]


@idiom
def get_empty_tuple(s: Buffers) -> list[torch.Tensor]:
    return [s.n[()]]


@idiom
def get_true(s: Buffers) -> list[torch.Tensor]:
    return [s.x[True]]


@idiom
def get_false(s: Buffers) -> list[torch.Tensor]:
    return [s.x[False]]


# Positions and slices from host data that changes


@idiom
def get_np_int(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.lens_np[0]]]


@idiom
def get_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.idx_cpu[0]]]


@idiom
def get_slice_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x[: s.idx_cpu[0]]]


@idiom
def get_slice_np_bounds(s: Buffers) -> list[torch.Tensor]:
    return [s.out[s.lens_np[0] : s.lens_np[0] + 4]]


# Positions and slices from the device


@idiom
def get_n(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.n]]


@idiom
def get_n_slice(s: Buffers) -> list[torch.Tensor]:
    return [s.x[: s.n]]


@idiom
def get_slice_indptr(s: Buffers) -> list[torch.Tensor]:
    return [s.out[s.indptr[1] : s.indptr[2]]]


@idiom
def get_n_1d(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.n.view(1)]]


@idiom
def get_idx_with_n(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.idx, s.n]]


@idiom
def get_bool_0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.n > 0]]


@idiom
def python_list_by_n(s: Buffers) -> list[torch.Tensor]:
    return [s.x + [0, 1, 2, 4, 8, 16][s.n]]


@idiom
def range_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.stack([s.x[i] for i in range(s.n)])]


# Lists and arrays


@idiom
def get_list(s: Buffers) -> list[torch.Tensor]:
    return [s.x[[0, 2]]]


@idiom
def get_list_rows(s: Buffers) -> list[torch.Tensor]:
    return [s.f[[0, 2], [1, 3]]]


@idiom
def get_list_nested(s: Buffers) -> list[torch.Tensor]:
    return [s.f[[[0, 1], [2, 3]]]]


@idiom
def get_list_bool(s: Buffers) -> list[torch.Tensor]:
    return [s.x[[True, False, True, False, False, True]]]


@idiom
def get_list_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.x[[]]]


@idiom
def get_list_of_dev0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.f[[s.idx[0], s.idx[1]]]]


@idiom
def get_list_of_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.f[[s.idx_cpu[0], s.idx_cpu[1]]]]


@idiom
def get_range(s: Buffers) -> list[torch.Tensor]:
    return [s.x[range(3)]]


@idiom
def get_np_idx(s: Buffers) -> list[torch.Tensor]:
    return [s.x[np.array([0, 2])]]


@idiom
def get_np_mask(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.lens_np > 1]]


# CPU index tensors


@idiom
def get_range_tensor_cpu(s: Buffers) -> list[torch.Tensor]:
    return [s.x[torch.arange(3)]]


@idiom
def get_idx_cpu_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.idx_cpu[:0]]]


@idiom
def get_idx_pinned(s: Buffers) -> list[torch.Tensor]:
    return [s.out.repeat(2)[s.pinned]]


@idiom
def get_mask_cpu(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.lens_cpu > 1]]


@idiom
def get_idx_dev_and_cpu(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.idx, s.idx_cpu]]


@idiom
def cpu_tensor_by_dev_idx(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu[s.idx]]


# Device index tensors


@idiom
def get_idx(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.idx]]


@idiom
def get_idx_int32(s: Buffers) -> list[torch.Tensor]:
    return [s.out[s.lens]]


@idiom
def get_idx_negative(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.idx - 6]]


@idiom
def get_idx_2d(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.idx.view(2, 3)]]


@idiom
def get_idx_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.idx[:0]]]


@idiom
def get_idx_pair(s: Buffers) -> list[torch.Tensor]:
    return [s.f[torch.arange(6, device=s.dev), s.idx]]


@idiom
def get_idx_outer(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.idx[:, None], s.x.clamp(max=7)[None, :]]]


@idiom
def get_idx_mixed_dtypes(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.idx, s.lens]]


@idiom
def get_idx_int_column(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.idx, 0]]


@idiom
def get_slice_then_idx(s: Buffers) -> list[torch.Tensor]:
    return [s.f[1:4, s.idx]]


@idiom
def get_idx_apart(s: Buffers) -> list[torch.Tensor]:
    """Index tensors with a slice between them: their dimension goes to the front."""
    return [s.f.view(2, 3, 8)[s.idx % 2, :, s.idx]]


@idiom
def get_idx_transposed(s: Buffers) -> list[torch.Tensor]:
    return [s.f.t()[s.idx]]


# Masks


@idiom
def get_mask(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.mask]]


@idiom
def get_mask_uint8(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.mask.to(torch.uint8)]]


@idiom
def get_mask_2d(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.f > 0]]


@idiom
def get_mask_with_idx(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.mask, s.idx[:3]]]


@idiom
def get_mask_none_set(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.x < 0]]


@idiom
def get_mask_nonzero(s: Buffers) -> list[torch.Tensor]:
    return [s.x[s.mask.nonzero().squeeze(1)]]


@idiom
def masked_select(s: Buffers) -> list[torch.Tensor]:
    return [torch.masked_select(s.x, s.mask)]


@idiom
def argwhere(s: Buffers) -> list[torch.Tensor]:
    return [torch.argwhere(s.mask)]


@idiom
def nonzero_tuple(s: Buffers) -> list[torch.Tensor]:
    return list(s.f.gt(0).nonzero(as_tuple=True))


@idiom
def where_cond(s: Buffers) -> list[torch.Tensor]:
    return list(torch.where(s.mask))


@idiom
def where_three(s: Buffers) -> list[torch.Tensor]:
    return [torch.where(s.mask, s.x, s.lens)]


@idiom
def nonzero_static(s: Buffers) -> list[torch.Tensor]:
    return [torch.nonzero_static(s.mask, size=6)]


@idiom
def nonzero_static_short(s: Buffers) -> list[torch.Tensor]:
    return [torch.nonzero_static(s.mask, size=2, fill_value=0)]


# Ops that read by index


@idiom
def index_select_int32(s: Buffers) -> list[torch.Tensor]:
    return [s.f.index_select(1, s.lens)]


@idiom
def index_select_0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x.index_select(0, s.n)]


@idiom
def index_select_cpu(s: Buffers) -> list[torch.Tensor]:
    return [s.x.index_select(0, s.idx_cpu)]


@idiom
def index_select_out(s: Buffers) -> list[torch.Tensor]:
    torch.index_select(s.x, 0, s.idx, out=s.out[:6])
    return [s.out]


@idiom
def aten_index(s: Buffers) -> list[torch.Tensor]:
    return [torch.ops.aten.index.Tensor(s.f, [None, s.idx])]


@idiom
def take_along(s: Buffers) -> list[torch.Tensor]:
    return [torch.take_along_dim(s.x, s.idx)]


@idiom
def take_along_broadcast(s: Buffers) -> list[torch.Tensor]:
    return [torch.take_along_dim(s.f, s.idx[:, None], dim=1)]


@idiom
def narrow_int(s: Buffers) -> list[torch.Tensor]:
    return [s.x.narrow(0, 1, 3)]


@idiom
def narrow_n(s: Buffers) -> list[torch.Tensor]:
    return [torch.narrow(s.x, 0, s.n, 1)]


@idiom
def select_n(s: Buffers) -> list[torch.Tensor]:
    return [s.f.select(1, s.n)]  # type: ignore[arg-type]


@idiom
def select_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.f.select(1, s.idx_cpu[0])]  # type: ignore[arg-type]


@idiom
def as_strided(s: Buffers) -> list[torch.Tensor]:
    return [s.out.as_strided((2, 3), (8, 2), 1)]


# Taking apart


@idiom
def iter_(s: Buffers) -> list[torch.Tensor]:
    return [torch.stack([v for v in s.x])]  # noqa: C416  published so


@idiom
def unpack(s: Buffers) -> list[torch.Tensor]:
    first, *_, last = s.f
    return [first, last]


@idiom
def unbind(s: Buffers) -> list[torch.Tensor]:
    return list(s.f.unbind(1))


@idiom
def split_sizes(s: Buffers) -> list[torch.Tensor]:
    return list(s.f.split([2, 4]))


@idiom
def split_sizes_cpu(s: Buffers) -> list[torch.Tensor]:
    return list(s.out[:15].split(s.lens_cpu.tolist()))


@idiom
def split_sizes_dev(s: Buffers) -> list[torch.Tensor]:
    return list(s.out[:15].split(s.lens.tolist()))


@idiom
def split_size_n(s: Buffers) -> list[torch.Tensor]:
    return list(s.x.split(s.n))


@idiom
def tensor_split_dev(s: Buffers) -> list[torch.Tensor]:
    return list(torch.tensor_split(s.x, s.idx[:2].cpu()))


@idiom
def tensor_split_cpu(s: Buffers) -> list[torch.Tensor]:
    return list(torch.tensor_split(s.x, s.idx_cpu[:2]))
