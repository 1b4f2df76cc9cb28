"""Views, their memory, and ops that only move elements around."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# Views written through, and views as outputs


@idiom
def view_written(s: Buffers) -> list[torch.Tensor]:
    s.out.view(8, 8)[1].add_(1)
    return [s.out]


@idiom
def chunks_written(s: Buffers) -> list[torch.Tensor]:
    for i, part in enumerate(s.out.chunk(4)):
        part.add_(i)
    return [s.out]


@idiom
def rows_written(s: Buffers) -> list[torch.Tensor]:
    for i, row in enumerate(s.f):
        row.mul_(i)
    return [s.f]


@idiom
def as_strided_written(s: Buffers) -> list[torch.Tensor]:
    s.out.as_strided((8,), (8,), 1).zero_()
    return [s.out]


@idiom
def diagonal_written(s: Buffers) -> list[torch.Tensor]:
    s.f[:, :6].diagonal().add_(10)
    return [s.f]


@idiom
def transpose_written(s: Buffers) -> list[torch.Tensor]:
    s.f.t()[:, 0].copy_(s.f[1])
    return [s.f]


@idiom
def columns_inplace(s: Buffers) -> list[torch.Tensor]:
    s.f[:, ::2].mul_(2)
    return [s.f]


@idiom
def contiguous_is_same_memory(s: Buffers) -> list[torch.Tensor]:
    y = s.x.contiguous()
    y.add_(1)
    return [s.x]


@idiom
def data_attribute(s: Buffers) -> list[torch.Tensor]:
    s.x.data.add_(1)
    return [s.x]


@idiom
def flatten_of_input(s: Buffers) -> list[torch.Tensor]:
    """The output is the static input itself."""
    return [s.f.flatten()]


@idiom
def views_of_output(s: Buffers) -> list[torch.Tensor]:
    y = s.x * 2
    return [y[1:4], y.view(2, 3)[1], y[::2]]


@idiom
def expand_of_output(s: Buffers) -> list[torch.Tensor]:
    return [(s.lens + 1).unsqueeze(1).expand(6, 4)]


@idiom
def expand_written(s: Buffers) -> list[torch.Tensor]:
    s.n.expand(4).add_(1)
    return [s.n]


@idiom
def overlap_written(s: Buffers) -> list[torch.Tensor]:
    s.out[1:].add_(s.out[:-1])
    return [s.out]


# Views read


@idiom
def reshape_copies(s: Buffers) -> list[torch.Tensor]:
    return [s.f.t().reshape(-1)]


@idiom
def view_of_transposed(s: Buffers) -> list[torch.Tensor]:
    return [s.f.t().view(-1)]


@idiom
def permute_contiguous(s: Buffers) -> list[torch.Tensor]:
    return [s.f.view(2, 3, 8).permute(2, 0, 1).contiguous()]


@idiom
def channels_last(s: Buffers) -> list[torch.Tensor]:
    return [s.f.view(1, 2, 3, 8).contiguous(memory_format=torch.channels_last) * 2]


@idiom
def expand_add(s: Buffers) -> list[torch.Tensor]:
    return [s.lens.unsqueeze(1).expand(6, 8) + s.f]


@idiom
def unfold_sum(s: Buffers) -> list[torch.Tensor]:
    return [s.out.unfold(0, 8, 4).sum(1)]


@idiom
def movedim_squeeze(s: Buffers) -> list[torch.Tensor]:
    return [s.f.view(6, 1, 8).movedim(2, 0).squeeze(2) + 1]


@idiom
def view_dtype(s: Buffers) -> list[torch.Tensor]:
    return [(s.f.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)]


@idiom
def view_dtype_narrower(s: Buffers) -> list[torch.Tensor]:
    s.x.view(torch.uint8)[::4] += 1
    return [s.x]


@idiom
def complex_conj_view(s: Buffers) -> list[torch.Tensor]:
    z = torch.view_as_complex(s.f.view(6, 4, 2))
    return [torch.view_as_real((z * z.conj()).resolve_conj())]


@idiom
def negative_bit_view(s: Buffers) -> list[torch.Tensor]:
    return [torch.view_as_complex(s.f.view(6, 4, 2)).conj().imag + 0.0]


# A tensor that changes its own shape or memory


@idiom
def squeeze_inplace(s: Buffers) -> list[torch.Tensor]:
    y = (s.x + 1).unsqueeze(0)
    y.squeeze_(0)
    y.add_(s.lens)
    return [y]


@idiom
def transpose_inplace(s: Buffers) -> list[torch.Tensor]:
    y = s.f * 2
    y.t_()
    y[0].zero_()
    return [y]


@idiom
def resize_smaller(s: Buffers) -> list[torch.Tensor]:
    y = s.x + 1
    y.resize_(3)
    return [y]


@idiom
def resize_larger(s: Buffers) -> list[torch.Tensor]:
    y = s.x + 1
    y.resize_(4096)
    y[6:].zero_()
    return [y]


@idiom
def set_to_other_tensor(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(0, dtype=torch.int32, device=s.dev)
    y.set_(s.x)  # type: ignore[call-overload]
    y.add_(1)
    return [y, s.x]


@idiom
def set_to_storage(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(0, dtype=torch.int32, device=s.dev)
    y.set_(s.out.untyped_storage(), 4, (4, 4), (8, 1))
    return [y + 1]


@idiom
def data_assigned(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(6, dtype=torch.int32, device=s.dev)
    y.data = s.x + 1
    return [y]


@idiom
def out_is_resized(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(0, dtype=torch.int32, device=s.dev)
    torch.add(s.x, 1, out=y)
    return [y]


@idiom
def out_has_wrong_size(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(3, dtype=torch.int32, device=s.dev)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.add(s.x, 1, out=y)
    return [y]


@idiom
def out_is_transposed(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(8, 6, device=s.dev)
    torch.add(s.f, 1.0, out=y.t())
    return [y]


@idiom
def out_is_an_input(s: Buffers) -> list[torch.Tensor]:
    torch.mul(s.x, s.x, out=s.x)
    return [s.x]


@idiom
def out_has_narrower_dtype(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(6, dtype=torch.int16, device=s.dev)
    torch.add(s.x, s.lens, out=y)
    return [y]


@idiom
def out_has_other_kind(s: Buffers) -> list[torch.Tensor]:
    torch.add(s.f[:, 0], 0.5, out=s.out[:6])
    return [s.out]


# Elements moved


@idiom
def flip(s: Buffers) -> list[torch.Tensor]:
    return [torch.flip(s.x, [0])]


@idiom
def roll(s: Buffers) -> list[torch.Tensor]:
    return [torch.roll(s.x, 1)]


@idiom
def roll_by_dev0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.roll(s.x, s.n)]  # type: ignore[arg-type]


@idiom
def rot90(s: Buffers) -> list[torch.Tensor]:
    return [torch.rot90(s.f)]


@idiom
def repeat_tile(s: Buffers) -> list[torch.Tensor]:
    return [s.x.repeat(2, 3), torch.tile(s.x, (2,))]


@idiom
def tril(s: Buffers) -> list[torch.Tensor]:
    return [torch.tril(torch.ones(4, 4, device=s.dev))]


@idiom
def triu_inplace(s: Buffers) -> list[torch.Tensor]:
    s.f.triu_(1)
    return [s.f]


@idiom
def pixel_shuffle(s: Buffers) -> list[torch.Tensor]:
    return [F.pixel_shuffle(s.f.view(1, 4, 3, 4), 2)]


@idiom
def im2col(s: Buffers) -> list[torch.Tensor]:
    return [F.unfold(s.f.view(1, 1, 6, 8), kernel_size=2)]


@idiom
def sparse_round_trip(s: Buffers) -> list[torch.Tensor]:
    return [s.f.to_sparse().to_dense()]
