"""Scatter, gather, search and embeddings; and what paged attention is told: indptr, page tables, slot mappings."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# Scatter


@idiom
def scatter_val(s: Buffers) -> list[torch.Tensor]:
    return [s.x.scatter(0, s.idx, 5)]


@idiom
def scatter_src(s: Buffers) -> list[torch.Tensor]:
    s.x.scatter_(0, s.idx, s.lens)
    return [s.x]


@idiom
def scatter_cpu_index(s: Buffers) -> list[torch.Tensor]:
    return [s.x.scatter(0, s.idx_cpu, 5)]


@idiom
def scatter_int32_index(s: Buffers) -> list[torch.Tensor]:
    return [s.x.scatter(0, s.idx.int(), s.lens)]


@idiom
def scatter_expanded_index(s: Buffers) -> list[torch.Tensor]:
    return [torch.zeros_like(s.f).scatter_(0, s.idx[:, None].expand(6, 8), s.f)]


@idiom
def scatter_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.x.scatter(0, s.idx[:0], s.lens[:0])]


@idiom
def scatter_reduce_name(s: Buffers) -> list[torch.Tensor]:
    return [s.x.scatter(0, s.idx, s.lens, reduce="add")]


@idiom
def scatter_add(s: Buffers) -> list[torch.Tensor]:
    return [s.x.scatter_add(0, s.idx, s.lens)]


@idiom
def scatter_reduce_sum(s: Buffers) -> list[torch.Tensor]:
    return [s.out[:8].scatter_reduce(0, s.lens.long(), s.x, "sum", include_self=False)]


@idiom
def scatter_reduce_amax(s: Buffers) -> list[torch.Tensor]:
    return [s.out[:8].scatter_reduce(0, s.lens.long(), s.x, "amax", include_self=True)]


@idiom
def scatter_reduce_prod(s: Buffers) -> list[torch.Tensor]:
    return [s.out[:8].scatter_reduce(0, s.lens.long(), s.x, "prod")]


@idiom
def scatter_reduce_mean(s: Buffers) -> list[torch.Tensor]:
    return [s.out[:8].scatter_reduce(0, s.lens.long(), s.x, "mean")]


@idiom
def index_add_int32_index(s: Buffers) -> list[torch.Tensor]:
    return [s.x.index_add(0, s.idx.int(), s.lens)]


@idiom
def index_reduce(s: Buffers) -> list[torch.Tensor]:
    return [s.f.index_reduce(0, s.idx, s.f * 2, "amax", include_self=False)]


@idiom
def select_scatter(s: Buffers) -> list[torch.Tensor]:
    return [s.f.select_scatter(s.x.float(), 1, 2)]


@idiom
def slice_scatter(s: Buffers) -> list[torch.Tensor]:
    return [s.out.slice_scatter(s.lens, 0, 1, 7)]


@idiom
def diagonal_scatter(s: Buffers) -> list[torch.Tensor]:
    return [s.f.diagonal_scatter(s.x.float())]


# Gather


@idiom
def gather(s: Buffers) -> list[torch.Tensor]:
    return [s.x.gather(0, s.idx), s.f.gather(1, s.lens.long()[:, None])]


@idiom
def gather_int32_index(s: Buffers) -> list[torch.Tensor]:
    return [s.x.gather(0, s.idx.int())]


@idiom
def gather_out(s: Buffers) -> list[torch.Tensor]:
    torch.gather(s.x, 0, s.idx, out=s.out[:6])
    return [s.out]


@idiom
def take(s: Buffers) -> list[torch.Tensor]:
    return [torch.take(s.f, s.idx - 6)]


@idiom
def unravel_index(s: Buffers) -> list[torch.Tensor]:
    return list(torch.unravel_index(s.x, (3, 3)))


# Search


@idiom
def bucketize_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.bucketize(s.x, s.indptr, right=True)]


@idiom
def bucketize_scalar(s: Buffers) -> list[torch.Tensor]:
    return [torch.bucketize(4, s.indptr)]


@idiom
def searchsorted_dev(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.indptr, s.x, right=True)]


@idiom
def searchsorted_scalar(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.indptr, 4)]


@idiom
def searchsorted_host_scalar(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.indptr, int(s.lens_cpu[3]))]


@idiom
def searchsorted_cpu_values(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.indptr, s.lens_cpu)]


@idiom
def searchsorted_list(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.indptr, s.x.new_tensor([3, 9]))]


@idiom
def searchsorted_int32(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.indptr, s.x, side="right", out_int32=True)]


@idiom
def searchsorted_sorter(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.x, s.lens, sorter=torch.argsort(s.x))]


@idiom
def searchsorted_rows(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.f.sort(dim=1)[0], s.f[:, :2].contiguous())]


# Embeddings


@idiom
def embedding(s: Buffers) -> list[torch.Tensor]:
    return [F.embedding(s.idx, s.f)]


@idiom
def embedding_int32(s: Buffers) -> list[torch.Tensor]:
    return [F.embedding(s.idx.int(), s.f, padding_idx=0)]


@idiom
def embedding_max_norm(s: Buffers) -> list[torch.Tensor]:
    return [F.embedding(s.idx, s.f, max_norm=1.0)]


@idiom
def embedding_bag_rows(s: Buffers) -> list[torch.Tensor]:
    return [F.embedding_bag(s.idx.view(2, 3), s.f, mode="mean")]


@idiom
def embedding_bag_offsets(s: Buffers) -> list[torch.Tensor]:
    return [F.embedding_bag(s.idx, s.f, offsets=torch.arange(0, 6, 2, device=s.dev), mode="sum")]


@idiom
def one_hot(s: Buffers) -> list[torch.Tensor]:
    return [F.one_hot(s.idx)]


@idiom
def one_hot_n(s: Buffers) -> list[torch.Tensor]:
    return [F.one_hot(s.idx, 6)]


# Serving metadata


@idiom
def indptr_of_page_counts(s: Buffers) -> list[torch.Tensor]:
    pages = (s.lens + 3) // 4
    indptr = torch.zeros(7, dtype=torch.int32, device=s.dev)
    torch.cumsum(pages, 0, out=indptr[1:])
    return [indptr]


@idiom
def last_page_lens(s: Buffers) -> list[torch.Tensor]:
    return [torch.where(s.lens == 0, 0, (s.lens - 1) % 4 + 1)]


@idiom
def segment_ids_by_search(s: Buffers) -> list[torch.Tensor]:
    positions = torch.arange(15, dtype=torch.int32, device=s.dev)
    return [torch.searchsorted(s.indptr, positions, right=True) - 1]


@idiom
def segment_ids_by_scatter(s: Buffers) -> list[torch.Tensor]:
    starts = torch.zeros(16, dtype=torch.int64, device=s.dev)
    starts.scatter_add_(0, s.indptr[1:-1].long(), torch.ones(5, dtype=torch.int64, device=s.dev))
    return [starts.cumsum(0)[:15]]


@idiom
def segment_ids_by_comparing(s: Buffers) -> list[torch.Tensor]:
    return [(torch.arange(15, device=s.dev)[:, None] >= s.indptr[1:]).sum(1)]


@idiom
def kv_indices_output_size(s: Buffers) -> list[torch.Tensor]:
    table = s.out.view(8, 8)
    rows = torch.repeat_interleave(torch.arange(6, device=s.dev), s.lens, output_size=15)
    columns = torch.arange(15, device=s.dev) - s.indptr[rows]
    return [table[rows, columns]]


@idiom
def kv_indices_mask(s: Buffers) -> list[torch.Tensor]:
    table = s.out.view(8, 8)[:6]
    return [table[torch.arange(8, device=s.dev) < s.lens[:, None]]]


@idiom
def kv_indices_host_loop(s: Buffers) -> list[torch.Tensor]:
    table = s.out.view(8, 8)
    return [torch.cat([table[row, :length] for row, length in enumerate(s.lens_cpu.tolist())])]


@idiom
def slots_from_block_table(s: Buffers) -> list[torch.Tensor]:
    table = s.out.view(8, 8)[:6]
    pages = table.gather(1, (s.x // 2).long()[:, None]).squeeze(1)
    return [pages * 2 + s.x % 2]


@idiom
def slots_padded(s: Buffers) -> list[torch.Tensor]:
    slots = F.pad(s.idx * 4, (0, 2))
    return [torch.where(torch.arange(8, device=s.dev) < s.n, slots, -1)]


@idiom
def write_real_slots_only(s: Buffers) -> list[torch.Tensor]:
    """Tokens without a slot go to rows at the end that nobody reads."""
    slots = torch.where(s.mask, s.idx, -1)
    s.out[torch.where(slots < 0, s.idx + 58, slots)] = s.lens
    return [s.out]


@idiom
def write_slots_mask(s: Buffers) -> list[torch.Tensor]:
    slots = torch.where(s.mask, s.idx, -1)
    real = slots >= 0
    s.out[slots[real]] = s.lens[real]
    return [s.out]


@idiom
def move_pages(s: Buffers) -> list[torch.Tensor]:
    pages = s.out.view(8, 8)
    pages[s.idx] = pages[s.idx.flip(0)]
    return [s.out]


@idiom
def last_token_rows(s: Buffers) -> list[torch.Tensor]:
    return [s.out.view(16, 4)[s.indptr[1:] - 1]]


@idiom
def inverse_permutation(s: Buffers) -> list[torch.Tensor]:
    inverse = torch.empty_like(s.idx)
    inverse[s.idx] = torch.arange(6, device=s.dev)
    return [inverse]


@idiom
def ragged_to_padded_mask(s: Buffers) -> list[torch.Tensor]:
    padded = torch.zeros(6, 6, dtype=torch.int32, device=s.dev)
    padded[torch.arange(6, device=s.dev) < s.lens[:, None]] = s.out[:15]
    return [padded]


@idiom
def ragged_to_padded_scatter(s: Buffers) -> list[torch.Tensor]:
    padded = torch.zeros(6, 6, dtype=torch.int32, device=s.dev)
    return [padded.masked_scatter(torch.arange(6, device=s.dev) < s.lens[:, None], s.out[:15])]


@idiom
def masked_mean(s: Buffers) -> list[torch.Tensor]:
    return [(s.f * s.mask[:, None]).sum(0) / s.mask.sum()]


@idiom
def expert_counts(s: Buffers) -> list[torch.Tensor]:
    counts = torch.zeros(9, dtype=torch.int32, device=s.dev)
    return [counts.scatter_add_(0, s.x.long(), torch.ones_like(s.x)).cumsum(0)]
