"""The allocator around capture and replay: what is reused, what is kept alive, what a graph reads when its memory is gone."""

from __future__ import annotations

import gc
from typing import Any

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom, program

# The allocator asked, inside the body


@idiom
def mem_info(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.mem_get_info()
    return [s.x + 1]


@idiom
def mem_stats(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.memory_allocated()
    return [s.x + 1]


@idiom
def mem_stats_dict(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.memory_stats()["num_alloc_retries"]
    return [s.x + 1]


@idiom
def mem_reset_peak(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.reset_peak_memory_stats()
    return [s.x + 1]


@idiom
def mem_snapshot(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.memory_snapshot()
    return [s.x + 1]


@idiom
def empty_cache(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.empty_cache()
    return [s.x + 1]


@idiom
def empty_cache_after_big_drop(s: Buffers) -> list[torch.Tensor]:
    """There is a segment to give back to the driver."""
    big = torch.zeros(48 << 20, dtype=torch.uint8, device=s.dev)
    total = big[:4].sum()
    del big
    torch.cuda.empty_cache()
    return [s.x + total]


@idiom
def gc_collect(s: Buffers) -> list[torch.Tensor]:
    gc.collect()
    return [s.x + 1]


@idiom
def temporaries_dropped(s: Buffers) -> list[torch.Tensor]:
    """The second temporary takes the first one's memory, and the first one's result is still right."""
    first = s.f * 2
    total = first.sum(1)
    del first
    second = s.f * 3
    return [total, second]


@idiom
def storage_freed_and_back(s: Buffers) -> list[torch.Tensor]:
    """Sharded training frees a parameter's storage, and allocates it again."""
    y = s.f * 2
    total = y.sum(1)
    size = y.untyped_storage().nbytes()
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(size)
    y.copy_(s.f)
    return [total, y]


@idiom
def reference_cycle_dropped(s: Buffers) -> list[torch.Tensor]:
    """Only the collector frees the first tensor."""
    holder: list[Any] = [s.f * 2]
    holder.append(holder)
    total = holder[0].sum(1)
    del holder
    gc.collect()
    return [total, s.f * 3]


# Addresses


@program
def address_reused_in_capture(s: Buffers) -> list[Any]:
    """Whether memory dropped inside a capture is handed out again inside it; and whether a view keeps it from that."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = s.f + 1
        address = first.data_ptr()
        del first
        second = s.f + 2
        reused = second.data_ptr() == address
        view = second[1:]
        address = second.data_ptr()
        del second
        third = s.f + 3
        kept = third.data_ptr() != address
    graph.replay()
    return [reused, kept, bool((view == s.f[1:] + 2).all()), bool((third == s.f + 3).all())]


@program
def address_not_reused_eagerly(s: Buffers) -> list[Any]:
    """Whether eager code gets the memory of an output that was dropped."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ones(3 << 20, device=s.dev)
    address = y.data_ptr()
    del y
    eager = [torch.zeros(3 << 20, device=s.dev) for _ in range(3)]
    graph.replay()
    return [address in [e.data_ptr() for e in eager], [float(e.sum()) for e in eager]]


@program
def address_stable_between_replays(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    address = y.data_ptr()
    seen = []
    for n in (0, 5):
        s.x.fill_(n)
        graph.replay()
        seen.append([y.data_ptr() == address, y.tolist()])
    return seen


@program
def second_graph_in_pool_output_dropped(s: Buffers) -> list[Any]:
    """Two graphs in one pool, the first one's output dropped: whether the second gets its memory; then what the second's output
    holds after its own replay, and after the first graph's."""
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        y = s.x + 100
    address = y.data_ptr()
    del y
    with torch.cuda.graph(two, pool=one.pool()):
        z = s.x + 200
    two.replay()
    held = [z.tolist()]
    one.replay()
    held.append(z.tolist())
    return [z.data_ptr() == address, held]


@program
def second_graph_in_pool_output_kept(s: Buffers) -> list[Any]:
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        y = s.x + 100
    with torch.cuda.graph(two, pool=one.pool()):
        z = s.x + 200
    one.replay()
    two.replay()
    return [z.data_ptr() == y.data_ptr(), y.tolist(), z.tolist()]


@program
def second_graph_in_pool_over_temporary(s: Buffers) -> list[Any]:
    """The second graph's output lies where the first graph had a temporary: what is left of it after the first one's replay."""
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        temporary = s.x * 10
        y = temporary + 1
        del temporary
    with torch.cuda.graph(two, pool=one.pool()):
        z = s.x + 200
    two.replay()
    one.replay()
    return [y.tolist(), z.tolist()]


@program
def second_graph_in_own_pool(s: Buffers) -> list[Any]:
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        y = s.x + 100
    address = y.data_ptr()
    del y
    with torch.cuda.graph(two):
        z = s.x + 200
    two.replay()
    one.replay()
    return [z.data_ptr() == address, z.tolist()]


# Memory that goes away under a graph


@program
def input_freed_and_reused(s: Buffers) -> list[Any]:
    """A buffer that the graph reads is dropped, and its memory given to another tensor: what the replay reads."""
    buffer = torch.full((3 << 20,), 1, dtype=torch.int32, device=s.dev)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = buffer[:4] + 10
    address = buffer.data_ptr()
    del buffer
    other = torch.full((3 << 20,), 7, dtype=torch.int32, device=s.dev)
    graph.replay()
    return [other.data_ptr() == address, y.tolist()]


@program
def written_buffer_freed_and_reused(s: Buffers) -> list[Any]:
    """A buffer that the graph writes is dropped, and its memory given to another tensor: what that tensor then holds."""
    buffer = torch.zeros(3 << 20, dtype=torch.int32, device=s.dev)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        buffer.fill_(5)
    del buffer
    other = torch.full((3 << 20,), 7, dtype=torch.int32, device=s.dev)
    graph.replay()
    return other[:4].tolist()


@program
def input_rebound(s: Buffers) -> list[Any]:
    """The name gets another tensor; the graph still reads the one it saw."""
    old = x = torch.full((4,), 1, device=s.dev)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 10
    x = torch.full((4,), 5, device=s.dev)
    graph.replay()
    first = y.tolist()
    old.copy_(x)
    graph.replay()
    return [first, y.tolist()]


@program
def pinned_freed_and_reused(s: Buffers) -> list[Any]:
    """Pinned memory that the graph copies from is dropped, and allocated again with other contents."""
    source = torch.full((1 << 20,), 1, dtype=torch.int32).pin_memory()
    target = torch.zeros(1 << 20, dtype=torch.int32, device=s.dev)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
    address = source.data_ptr()
    del source
    other = torch.full((1 << 20,), 7, dtype=torch.int32).pin_memory()
    graph.replay()
    return [other.data_ptr() == address, target[:4].tolist()]


# What capture does to memory that existed, and what outlives a graph


@program
def capture_executes_nothing(s: Buffers) -> list[Any]:
    """Existing buffers before the capture, after it, and after a replay."""
    held = [s.x.tolist()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        s.x.add_(100)
        s.out[:6].copy_(s.x)
    held.append(s.x.tolist())
    graph.replay()
    held += [s.x.tolist(), s.out[:6].tolist()]
    return held


@program
def replays_accumulate(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        s.n.add_(1)
    held = []
    for _ in range(3):
        graph.replay()
        held.append(s.n.tolist())
    return held


@program
def inputs_changed_between_replays(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.cumsum(s.lens, 0)
    held = []
    for n in (1, 2):
        s.lens.fill_(n)
        graph.replay()
        held.append(y.tolist())
    return held


@program
def output_changed_between_replays(s: Buffers) -> list[Any]:
    """Eager code writes into a graph's output; the next replay writes over it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    y.zero_()
    held = [y.tolist()]
    graph.replay()
    held.append(y.tolist())
    return held


@program
def output_held_over_reset(s: Buffers) -> list[Any]:
    """The output after its graph was reset, and after the allocator had a reason to hand its memory out again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    graph.reset()
    held = [y.tolist()]
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(6, dtype=torch.int32, device=s.dev) for _ in range(4)]
    held.append(y.tolist())
    return [held, y.data_ptr() in [o.data_ptr() for o in others]]


@program
def output_held_over_deletion(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(6, dtype=torch.int32, device=s.dev) for _ in range(4)]
    y.add_(others[0])
    return y.tolist()


@program
def replay_after_reset(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.reset()
    graph.replay()
    return y.tolist()


@program
def pool_holds_memory(s: Buffers) -> list[Any]:
    """Whether an output counts as allocated and as reserved: while it is held, when only the graph lives, when neither does."""
    torch.cuda.empty_cache()
    large = 64 << 20
    start = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    seen = []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.zeros(large, dtype=torch.uint8, device=s.dev)
    seen.append([torch.cuda.memory_allocated() >= start[0] + large, torch.cuda.memory_reserved() >= start[1] + large])
    del y
    torch.cuda.empty_cache()
    seen.append([torch.cuda.memory_allocated() >= start[0] + large, torch.cuda.memory_reserved() >= start[1] + large])
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    seen.append([torch.cuda.memory_allocated() >= start[0] + large, torch.cuda.memory_reserved() >= start[1] + large])
    return seen


@program
def memory_pool_object(s: Buffers) -> list[Any]:
    """A graph whose pool is a `MemPool`; eager code uses the pool as well."""
    pool = torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):  # type: ignore[arg-type]
        y = s.x + 1
    with torch.cuda.use_mem_pool(pool):
        z = s.x + 2
    graph.replay()
    return [y.tolist(), z.tolist()]


@program
def too_large_allocation_in_capture(s: Buffers) -> list[Any]:
    """An allocation that cannot succeed is caught inside the body: whether the capture lives on."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device=s.dev)
            caught = "nothing"
        except RuntimeError as error:
            caught = type(error).__name__
        y = s.x + 1
    graph.replay()
    return [caught, y.tolist()]


@program
def freed_during_capture(s: Buffers) -> list[Any]:
    """Memory of eager code is dropped while a capture is under way, and is in use again afterwards."""
    buffer = torch.ones(3 << 20, device=s.dev)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
        del buffer
    again = torch.zeros(3 << 20, device=s.dev)
    graph.replay()
    return [float(again.sum()), y.tolist()]
