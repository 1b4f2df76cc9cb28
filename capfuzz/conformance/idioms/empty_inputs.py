"""Nothing to do: ops on tensors without elements, as a batch of zero gives. Many return before they would wait."""

from __future__ import annotations

from typing import Any

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom, program


@idiom
def nothing_repeated(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.lens[:0])]


@idiom
def nothing_repeated_of_values(s: Buffers) -> list[torch.Tensor]:
    return [torch.repeat_interleave(s.x[:0], s.lens[:0])]


@idiom
def nothing_nonzero(s: Buffers) -> list[torch.Tensor]:
    return [torch.nonzero(s.x[:0])]


@idiom
def nothing_nonzero_of_mask(s: Buffers) -> list[torch.Tensor]:
    return list(torch.nonzero(s.mask[:0], as_tuple=True))


@idiom
def nothing_where_alone(s: Buffers) -> list[torch.Tensor]:
    return list(torch.where(s.f[:0] > 0))


@idiom
def nothing_by_mask(s: Buffers) -> list[torch.Tensor]:
    return [s.x[:0][s.mask[:0]]]


@idiom
def nothing_masked_select(s: Buffers) -> list[torch.Tensor]:
    return [torch.masked_select(s.x[:0], s.mask[:0])]


@idiom
def nothing_by_mask_of_rows(s: Buffers) -> list[torch.Tensor]:
    return [s.f[:, :0][s.mask]]


@idiom
def nothing_set_by_mask_values(s: Buffers) -> list[torch.Tensor]:
    s.x[:0][s.mask[:0]] = s.lens[:0]
    return [s.x]


@idiom
def nothing_set_by_mask_scalar(s: Buffers) -> list[torch.Tensor]:
    s.x[:0][s.mask[:0]] = 3
    return [s.x]


@idiom
def nothing_set_by_host_mask(s: Buffers) -> list[torch.Tensor]:
    s.x[:0][torch.empty(0, dtype=torch.bool)] = 3
    return [s.x]


@idiom
def nothing_unique(s: Buffers) -> list[torch.Tensor]:
    return [torch.unique(s.x[:0])]


@idiom
def nothing_unique_counts(s: Buffers) -> list[torch.Tensor]:
    return list(torch.unique(s.x[:0], return_inverse=True, return_counts=True))


@idiom
def nothing_unique_consecutive(s: Buffers) -> list[torch.Tensor]:
    return [torch.unique_consecutive(s.x[:0])]


@idiom
def nothing_unique_dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.unique(s.f[:0], dim=0)]


@idiom
def nothing_bincount(s: Buffers) -> list[torch.Tensor]:
    return [torch.bincount(s.x[:0])]


@idiom
def nothing_bincount_minlength(s: Buffers) -> list[torch.Tensor]:
    return [torch.bincount(s.x[:0], minlength=4)]


@idiom
def nothing_allclose(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(torch.allclose(s.f[:0], s.f[:0]))]


@idiom
def nothing_any(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(bool(s.mask[:0].any()))]


@idiom
def nothing_tolist(s: Buffers) -> list[torch.Tensor]:
    return [s.x + len(s.x[:0].tolist())]


@idiom
def nothing_to_cpu(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.x[:0].cpu().numel()]


@idiom
def nothing_to_numpy(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.x[:0].cpu().numpy().size]


@idiom
def nothing_from_list(s: Buffers) -> list[torch.Tensor]:
    return [s.x, torch.tensor([], dtype=torch.int32, device=s.dev)]


@idiom
def nothing_from_list_moved(s: Buffers) -> list[torch.Tensor]:
    return [s.x, torch.tensor([], dtype=torch.int32).to(s.dev)]


@idiom
def nothing_cast_on_the_way(s: Buffers) -> list[torch.Tensor]:
    return [s.x, s.lens_cpu[:0].to(s.dev, torch.int64)]


@idiom
def nothing_copied_in(s: Buffers) -> list[torch.Tensor]:
    s.out[:0].copy_(s.lens_cpu[:0])
    return [s.out]


@idiom
def nothing_copied_out(s: Buffers) -> list[torch.Tensor]:
    s.lens_cpu[:0].copy_(s.x[:0])
    return [s.x]


@idiom
def nothing_pinned(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.lens_cpu[:0].pin_memory().numel()]


@idiom
def nothing_indexed_by_host(s: Buffers) -> list[torch.Tensor]:
    return [s.f[s.idx_cpu[:0]]]


@idiom
def nothing_index_put_by_host(s: Buffers) -> list[torch.Tensor]:
    s.x[s.idx_cpu[:0]] = s.lens[:0]
    return [s.x]


@idiom
def nothing_isin(s: Buffers) -> list[torch.Tensor]:
    return [torch.isin(s.x, s.lens[:0])]


@idiom
def nothing_in_isin(s: Buffers) -> list[torch.Tensor]:
    return [torch.isin(s.x[:0], s.lens)]


@idiom
def nothing_histc(s: Buffers) -> list[torch.Tensor]:
    return [torch.histc(s.f[:0], bins=4, min=0, max=1)]


@idiom
def nothing_multinomial(s: Buffers) -> list[torch.Tensor]:
    return [torch.multinomial(s.f[:0].softmax(-1), 1)]


@idiom
def nothing_randperm(s: Buffers) -> list[torch.Tensor]:
    return [torch.randperm(0, device=s.dev)]


@idiom
def nothing_to_sparse(s: Buffers) -> list[torch.Tensor]:
    return [s.x[:0].to_sparse().values()]


@idiom
def nothing_segment_reduced(s: Buffers) -> list[torch.Tensor]:
    return [torch.segment_reduce(s.f[:0, 0].contiguous(), "sum", lengths=s.lens[:0].long())]


@idiom
def nothing_eigh(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.eigvalsh(s.f[:0, :0])]


@idiom
def nothing_max_of(s: Buffers) -> list[torch.Tensor]:
    """An error on every device, eager too: there is no maximum of nothing."""
    return [s.x[:0].max()]


@idiom
def nothing_mode(s: Buffers) -> list[torch.Tensor]:
    return [s.f[:0].mode(1).values]


@idiom
def nothing_tensor_split(s: Buffers) -> list[torch.Tensor]:
    return list(torch.tensor_split(s.x, s.idx_cpu[:0]))


@idiom
def nothing_embedding_bag(s: Buffers) -> list[torch.Tensor]:
    return [torch.nn.functional.embedding_bag(s.idx[:0], s.f, s.idx[:0], mode="sum")]


@program
def nothing_dropped(s: Buffers) -> list[Any]:
    """A buffer of no elements owns no memory, so nothing dangles when its owner drops it."""
    nothing = torch.empty(0, dtype=torch.int32, device=s.dev)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        joined = torch.cat([nothing, s.x])
    del nothing
    graph.replay()
    return [joined.tolist()]
