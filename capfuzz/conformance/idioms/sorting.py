"""Sorting, selecting by rank, and what serving code builds on them."""

from __future__ import annotations

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom


@idiom
def sort(s: Buffers) -> list[torch.Tensor]:
    return [torch.sort(s.x)[0]]


@idiom
def argsort_stable(s: Buffers) -> list[torch.Tensor]:
    return [torch.argsort(s.x, stable=True)]


@idiom
def sort_stable_descending(s: Buffers) -> list[torch.Tensor]:
    return list(torch.sort(s.lens, stable=True, descending=True))


@idiom
def sort_columns(s: Buffers) -> list[torch.Tensor]:
    return list(torch.sort(s.f, dim=0))


@idiom
def sort_out(s: Buffers) -> list[torch.Tensor]:
    torch.sort(s.x, out=(s.out[:6], s.idx))
    return [s.out, s.idx]


@idiom
def sort_inplace_by_copy(s: Buffers) -> list[torch.Tensor]:
    s.x.copy_(s.x.sort().values)
    return [s.x]


@idiom
def sort_bool(s: Buffers) -> list[torch.Tensor]:
    return list(torch.sort(s.mask, stable=True))


@idiom
def sort_with_nan(s: Buffers) -> list[torch.Tensor]:
    return [s.f.log().sort(dim=-1).values]


@idiom
def sort_empty(s: Buffers) -> list[torch.Tensor]:
    return list(torch.sort(s.x[:0]))


@idiom
def sort_large(s: Buffers) -> list[torch.Tensor]:
    """Large enough for a radix sort with memory of its own."""
    return [torch.sort(s.out.repeat(2048), stable=True)[0][::1024]]


@idiom
def sort_many_rows(s: Buffers) -> list[torch.Tensor]:
    """Rows too long for one block: a segmented sort."""
    return [torch.sort(s.f.repeat(1, 1024), dim=1)[0][:, ::512]]


@idiom
def msort(s: Buffers) -> list[torch.Tensor]:
    return [torch.msort(s.f)]


@idiom
def topk_smallest_indices(s: Buffers) -> list[torch.Tensor]:
    return [torch.topk(s.f, 3, largest=False)[1]]


@idiom
def topk_out(s: Buffers) -> list[torch.Tensor]:
    torch.topk(s.x, 6, out=(s.out[:6], s.idx))
    return [s.out, s.idx]


@idiom
def topk_large(s: Buffers) -> list[torch.Tensor]:
    """Enough elements for several blocks."""
    return [torch.topk(s.out.repeat(2048), 5)[0]]


@idiom
def topk_mask_logits(s: Buffers) -> list[torch.Tensor]:
    """Sampling's top-k with a k on the device: the k-th value is gathered, not sliced."""
    ordered = s.f.sort(dim=-1, descending=True).values
    kth = ordered.gather(1, (s.n.long() - 1).expand(6, 1))
    return [s.f.masked_fill(s.f < kth, float("-inf"))]


@idiom
def top_p_mask_logits(s: Buffers) -> list[torch.Tensor]:
    probs, order = torch.softmax(s.f, -1).sort(dim=-1, descending=True)
    drop = probs.cumsum(-1) - probs > 0.6
    return [s.f.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), float("-inf"))]


@idiom
def mode_long(s: Buffers) -> list[torch.Tensor]:
    """Rows too long for the fused kernel."""
    return [s.out.repeat(256).mode().values]


@idiom
def unique_by_sort(s: Buffers) -> list[torch.Tensor]:
    """The rank of each length among the different ones, without a size that the host would have to read."""
    ordered, order = torch.sort(s.lens, stable=True)
    first = torch.ones_like(s.mask)
    first[1:] = ordered[1:] != ordered[:-1]
    rank = torch.cumsum(first, 0) - 1
    return [torch.empty_like(rank).scatter_(0, order, rank)]


@idiom
def searchsorted_after_sort(s: Buffers) -> list[torch.Tensor]:
    return [torch.searchsorted(s.x.sort().values, s.lens)]


@idiom
def argsort_combined_key(s: Buffers) -> list[torch.Tensor]:
    return [torch.argsort(s.lens * 16 + s.x)]


@idiom
def lexsort_by_two_stable_sorts(s: Buffers) -> list[torch.Tensor]:
    minor = torch.argsort(s.x, stable=True)
    return [minor[torch.argsort(s.lens[minor], stable=True)]]


@idiom
def compaction_by_sort(s: Buffers) -> list[torch.Tensor]:
    """The rows under the mask first, in their order; how many there are stays on the device."""
    order = torch.argsort(~s.mask, stable=True)
    return [s.x[order], s.mask.sum()]


@idiom
def moe_align_blocks(s: Buffers) -> list[torch.Tensor]:
    """Tokens sorted by expert, each expert's share padded to whole blocks of four."""
    experts = s.x % 3
    counts = (experts[:, None] == torch.arange(3, device=s.dev)).sum(0)
    ends = torch.cumsum((counts + 3) // 4 * 4, 0)
    order = torch.argsort(experts, stable=True)
    rank = torch.arange(6, device=s.dev) - (torch.cumsum(counts, 0) - counts)[experts[order]]
    starts = ends - (counts + 3) // 4 * 4
    slots = torch.full((24,), 6, device=s.dev)
    slots[starts[experts[order]] + rank] = order
    block_expert = torch.searchsorted(ends, torch.arange(0, 24, 4, device=s.dev), right=True)
    return [slots, block_expert, ends[-1]]
