"""Graphs as objects: begun and ended by hand, replayed, pooled, reset, nested, broken, and what the errors say."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import program

# Begun and ended by hand


@program
def capture_by_hand(s: Buffers) -> list[Any]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        graph.capture_begin()
        y = s.x + 1
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    return y.tolist()


@program
def capture_by_hand_in_pool(s: Buffers) -> list[Any]:
    """Two graphs in a pool made beforehand."""
    pool = torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graphs, outputs = [], []
    with torch.cuda.stream(side):
        for n in (1, 2):
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=pool)
            outputs.append(s.x + n)
            graphs[-1].capture_end()
    torch.cuda.current_stream().wait_stream(side)
    for graph in graphs:
        graph.replay()
    return [[y.tolist() for y in outputs], graphs[0].pool() == graphs[1].pool(), tuple(pool) == tuple(graphs[0].pool())]


@program
def capture_on_default_stream(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.default_stream()):
        graph.capture_begin()
    return ["captured"]


@program
def capture_end_without_begin(s: Buffers) -> list[Any]:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.CUDAGraph().capture_end()
    return ["ended"]


@program
def capture_end_on_other_stream(s: Buffers) -> list[Any]:
    """Refused; and the capture goes on."""
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    said: list[Any] = []
    with torch.cuda.stream(side):
        graph.capture_begin()
        y = s.x + 1
        with torch.cuda.stream(other):
            try:
                graph.capture_end()
                said.append("ended")
            except RuntimeError as error:
                said.append([type(error).__name__, str(error).splitlines()[0]])
        if said != ["ended"]:
            graph.capture_end()
    graph.replay()
    return [said, y.tolist()]


@program
def capture_on_stream_given(s: Buffers) -> list[Any]:
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        y = s.x + 1
    graph.replay()
    return y.tolist()


@program
def capture_twice_by_two_names(s: Buffers) -> list[Any]:
    """Two captures under way at the same time, on two streams."""
    outer, inner = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    said = []
    with torch.cuda.graph(outer, stream=torch.cuda.Stream()):
        y = s.x + 1
        with torch.cuda.stream(torch.cuda.Stream()):
            try:
                inner.capture_begin()
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
            else:
                z = s.x + 2
                inner.capture_end()
                said.append("both")
    outer.replay()
    if said == ["both"]:
        inner.replay()
        return [said, y.tolist(), z.tolist()]
    return [said, y.tolist()]


@program
def nested_capture(s: Buffers) -> list[Any]:
    outer, inner = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        y = s.x + 1
        with torch.cuda.graph(inner):
            z = y + 1
    return [z.numel()]


@program
def empty_capture(s: Buffers) -> list[Any]:
    """Nothing is recorded: a warning, and a graph that may be replayed."""
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph):
            pass
    graph.replay()
    return [str(w.message).partition(" (Triggered")[0].strip() for w in caught]


@program
def capture_of_allocation_only(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph):
            y = torch.empty(4, device=s.dev)
    graph.replay()
    return [len(caught), list(y.shape)]


@program
def asked_whether_capturing(s: Buffers) -> list[Any]:
    """Before, in and after a capture, and after one that failed."""
    asked = [torch.cuda.is_current_stream_capturing()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        asked.append(torch.cuda.is_current_stream_capturing())
    asked.append(torch.cuda.is_current_stream_capturing())
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            s.n.item()
    except RuntimeError:
        asked.append(torch.cuda.is_current_stream_capturing())
    return asked


# Replays


@program
def replay_without_capture(s: Buffers) -> list[Any]:
    torch.cuda.CUDAGraph().replay()
    return ["replayed"]


@program
def replay_twice(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        s.n.mul_(3)
        y = s.x + s.n
    held = []
    for _ in range(2):
        graph.replay()
        held.append(y.tolist())
    return held


@program
def replay_on_side_stream(s: Buffers) -> list[Any]:
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        y = s.x + 1
    s.x.fill_(7)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.replay()
    torch.cuda.current_stream().wait_stream(side)
    return y.tolist()


@program
def replay_in_turn(s: Buffers) -> list[Any]:
    """Two graphs that hand a value to and fro."""
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    a, b = torch.ones(2, device=s.dev), torch.zeros(2, device=s.dev)
    with torch.cuda.graph(one):
        b.copy_(a * 2)
    with torch.cuda.graph(two):
        a.copy_(b + 1)
    for _ in range(3):
        one.replay()
        two.replay()
    return [a.tolist(), b.tolist()]


@program
def replay_between_eager(s: Buffers) -> list[Any]:
    """Eager work before and after, no wait between."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x * 2
    held = []
    for n in range(3):
        s.x.fill_(n)
        graph.replay()
        held.append(y.clone())
    return [t.tolist() for t in held]


@program
def replay_inside_capture(s: Buffers) -> list[Any]:
    """One graph's replay is captured by another."""
    inner, outer = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        y = s.x + 1
    with torch.cuda.graph(outer):
        inner.replay()
        z = y * 10
    s.x.fill_(4)
    outer.replay()
    return [y.tolist(), z.tolist()]


@program
def replay_in_inference_mode(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    with torch.inference_mode():
        graph.replay()
        z = y + 1
    return [z.tolist(), y.is_inference()]


@program
def capture_in_inference_mode(s: Buffers) -> list[Any]:
    """The graph is replayed outside, and its output read there."""
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        s.x.add_(1)
        with torch.cuda.graph(graph):
            y = s.x + 1
            s.out[:6].copy_(y)
    graph.replay()
    return [y.tolist(), (y + 1).tolist(), y.is_inference(), s.out[:6].tolist()]


# Graphs that end


@program
def one_of_two_destroyed(s: Buffers) -> list[Any]:
    """Both in one pool; the first goes, with what it held; the second is replayed."""
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        y = s.x + 1
    with torch.cuda.graph(two, pool=one.pool()):
        z = s.x + 2
    one.replay()
    first = y.tolist()
    del one, y
    gc.collect()
    torch.cuda.empty_cache()
    two.replay()
    return [first, z.tolist()]


@program
def pool_of_destroyed_graph(s: Buffers) -> list[Any]:
    """The handle outlives its graph: a capture into it."""
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        y = s.x + 1
    pool = one.pool()
    del one, y
    gc.collect()
    with torch.cuda.graph(two, pool=pool):
        z = s.x + 2
    two.replay()
    return z.tolist()


@program
def destroyed_during_capture(s: Buffers) -> list[Any]:
    """A graph is dropped while another capture is under way."""
    old, new = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(old):
        y = s.x + 1
    old.replay()
    with torch.cuda.graph(new):
        z = s.x + 2
        del old, y
        gc.collect()
    new.replay()
    return z.tolist()


@program
def reset_then_capture_again(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    graph.reset()
    with torch.cuda.graph(graph):
        z = s.x + 2
    graph.replay()
    return [y.tolist(), z.tolist()]


@program
def reset_twice(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    graph.reset()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    graph.reset()
    graph.reset()
    return y.tolist()


@program
def capture_again_without_reset(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    # The outer context puts the stream back: the capture's own does not when it cannot begin.
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        z = s.x + 2
    return [y.numel(), z.numel()]


@program
def captured_graph_good_after_refused_capture(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    with torch.cuda.stream(torch.cuda.Stream()):
        try:
            graph.capture_begin()
        except RuntimeError as error:
            said = str(error).splitlines()[0]
        else:
            graph.capture_end()
            said = "captured again"
    graph.replay()
    return [said, y.tolist()]


# Pools


@program
def pool_before_capture(s: Buffers) -> list[Any]:
    torch.cuda.CUDAGraph().pool()
    return ["a pool"]


@program
def pool_after_reset(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.reset()
    graph.pool()
    return [y.numel()]


@program
def pools_differ(s: Buffers) -> list[Any]:
    """Handles and graphs' own pools are all different; a graph that was given a pool says so."""
    handles = [tuple(torch.cuda.graph_pool_handle()) for _ in range(2)]
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    for graph, pool in zip(graphs, [None, None, torch.cuda.graph_pool_handle()], strict=True):
        with torch.cuda.graph(graph, pool=pool):
            s.x.add_(1)
    pools = [tuple(graph.pool()) for graph in graphs]
    return [len(set(handles + pools)), [len(pool) for pool in pools]]


@program
def shared_pool_handle(s: Buffers) -> list[Any]:
    """An engine's buckets: large first, one pool; each replay is right when it is read at once."""
    pool = torch.cuda.graph_pool_handle()
    graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
    for size in (6, 4, 2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = torch.cumsum(s.lens[:size], 0)
        graphs[size] = graph, y
    held = []
    for size in (2, 6, 4):
        graphs[size][0].replay()
        held.append(graphs[size][1].tolist())
    return held


# Captures that fail


@program
def failed_then_good_capture(s: Buffers) -> list[Any]:
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            s.n.item()
    except RuntimeError as error:
        said = str(error).splitlines()[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    return [said, y.tolist()]


@program
def failed_then_same_graph(s: Buffers) -> list[Any]:
    """The graph object of the failed capture is used again."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            s.n.item()
    except RuntimeError:
        torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    return y.tolist()


@program
def failed_then_replay(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            s.x.add_(1)
            s.n.item()
    except RuntimeError:
        torch.cuda.synchronize()
    graph.replay()
    return s.x.tolist()


@program
def failed_leaves_buffers(s: Buffers) -> list[Any]:
    """What a failed capture had recorded never runs."""
    before = s.x.tolist()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            s.x.add_(1)
            s.n.item()
    except RuntimeError:
        torch.cuda.synchronize()
    return [s.x.tolist() == before]


@program
def failed_leaves_stream(s: Buffers) -> list[Any]:
    """Whether the current stream is the one from before, after a capture that failed, and after one that could not begin."""
    torch.cuda.set_stream(torch.cuda.default_stream())
    same = []
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            s.n.item()
    except RuntimeError:
        same.append(torch.cuda.current_stream() == torch.cuda.default_stream())
    torch.cuda.set_stream(torch.cuda.default_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        s.x.add_(1)
    try:
        with torch.cuda.graph(graph):
            s.x.add_(1)
    except RuntimeError:
        same.append(torch.cuda.current_stream() == torch.cuda.default_stream())
    torch.cuda.set_stream(torch.cuda.default_stream())
    return same


@program
def failed_with_random_numbers_then_draw(s: Buffers) -> list[Any]:
    """The generator that a failed capture drew from, used eagerly."""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.rand(4, device=s.dev)
            s.n.item()
    except RuntimeError:
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()
    return [torch.rand(4, device=s.dev).numel()]


@program
def failed_with_random_numbers_then_capture(s: Buffers) -> list[Any]:
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.rand(4, device=s.dev)
            s.n.item()
    except RuntimeError:
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev)
    graph.replay()
    return [bool((y >= 0).all())]


@program
def exception_of_host_in_body(s: Buffers) -> list[Any]:
    """An exception that has nothing to do with the device: the capture ends well, and what was recorded can be replayed."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            s.x.add_(1)
            raise KeyError("layer")
    except KeyError as error:
        said = [type(error).__name__, type(error.__context__).__name__]
    graph.replay()
    return [said, s.x.tolist()]


@program
def work_after_lost_capture(s: Buffers) -> list[Any]:
    """What ops, an allocation and a question say inside a body whose capture is already lost."""
    said: list[Any] = []
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            for step in (s.n.item, s.n.item, lambda: s.x.add_(1), lambda: s.x.zero_(), torch.cuda.is_current_stream_capturing):
                try:
                    result = step()
                    said.append(result if isinstance(result, bool) else "ran")
                except RuntimeError as error:
                    said.append(str(error).splitlines()[0])
    except RuntimeError as error:
        said.append(["end", str(error).splitlines()[0]])
    torch.cuda.set_stream(torch.cuda.default_stream())
    return said


@program
def work_after_refused_host_copy(s: Buffers) -> list[Any]:
    """A refused pageable copy does not lose the capture."""
    said = []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        try:
            s.x.copy_(s.lens_cpu)
        except RuntimeError as error:
            said.append(str(error).splitlines()[0])
        y = s.x + 1
    graph.replay()
    return [said, y.tolist()]


@program
def messages_of_failed_captures(s: Buffers) -> list[Any]:
    """What reaches the caller, and what its context is, for the three classical ways to fail."""

    def unjoined() -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            s.out.add_(1)

    bodies: list[tuple[str, Callable[[], Any]]] = [
        ("host copy", lambda: s.x.copy_(s.lens_cpu)),
        ("item", lambda: s.n.item()),
        ("unjoined", unjoined),
    ]
    said: list[Any] = []
    for name, body in bodies:
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
                body()
            said.append([name, "captured"])
        except Exception as error:
            chain: list[Any] = []
            cause: BaseException | None = error
            while cause is not None:
                chain.append([type(cause).__name__, str(cause).splitlines()[0]])
                cause = cause.__context__
            said.append([name, chain])
        torch.cuda.set_stream(torch.cuda.default_stream())
    return said


# Instantiated by hand


@program
def keep_graph_replayed(s: Buffers) -> list[Any]:
    """A graph that is kept is instantiated by its first replay."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.replay()
    return y.tolist()


@program
def keep_graph_instantiated(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.instantiate()
    graph.replay()
    graph.instantiate()
    s.x.fill_(3)
    graph.replay()
    return [y.tolist(), graph.raw_cuda_graph() != 0]


@program
def raw_graph_not_kept(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.raw_cuda_graph()
    return [y.numel()]


@program
def instantiate_not_kept(s: Buffers) -> list[Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
    graph.instantiate()
    return [y.numel()]


@program
def instantiate_without_capture(s: Buffers) -> list[Any]:
    torch.cuda.CUDAGraph(keep_graph=True).instantiate()
    return ["instantiated"]
