"""Work that the host does beside the launches: it happens at capture, and never at replay."""

from __future__ import annotations

import copy
import functools
import io
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom, program

# Facts about the device and the capture


@idiom
def dev_props(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.get_device_properties(0)
    return [s.x + 1]


@idiom
def dev_facts(s: Buffers) -> list[torch.Tensor]:
    assert torch.cuda.is_available() and torch.cuda.is_initialized()
    assert torch.cuda.get_device_capability() >= (7, 0)
    return [s.x + torch.cuda.current_device()]


@idiom
def is_capturing_branch(s: Buffers) -> list[torch.Tensor]:
    return [s.x + (100 if torch.cuda.is_current_stream_capturing() else 0)]


@idiom
def refuses_capture(s: Buffers) -> list[torch.Tensor]:
    """Code that knows that it cannot be captured."""
    if torch.cuda.is_current_stream_capturing():
        raise NotImplementedError("this path reads lengths on the host")
    return [s.x + int(s.n)]


@idiom
def index_bounds_checked_unless_capturing(s: Buffers) -> list[torch.Tensor]:
    if not torch.cuda.is_current_stream_capturing():
        assert int(s.idx.max()) < 6
    return [s.x[s.idx]]


# Text


@idiom
def fmt(s: Buffers) -> list[torch.Tensor]:
    repr(s.x)
    return [s.x + 1]


@idiom
def repr_empty(s: Buffers) -> list[torch.Tensor]:
    repr(s.x[:0])
    return [s.x + 1]


@idiom
def print_tensor(s: Buffers) -> list[torch.Tensor]:
    print(s.x, file=io.StringIO())
    return [s.x + 1]


@idiom
def print_facts(s: Buffers) -> list[torch.Tensor]:
    print(s.x.shape, s.x.dtype, s.x.device, s.x.stride(), s.x.is_cuda, file=io.StringIO())
    return [s.x + 1]


@idiom
def format_dev0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x + len(f"{s.n:03d}")]


@idiom
def format_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(f"{s.lens_cpu[3]}")]


@idiom
def warn(s: Buffers) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("slow path", stacklevel=2)
    return [s.x + 1]


# State of Python

_calls: list[int] = []


@idiom
def call_counter(s: Buffers) -> list[torch.Tensor]:
    """The number of calls so far: the graph keeps the one of its capture."""
    _calls.append(1)
    return [s.x + len(_calls)]


@idiom
def host_clock(s: Buffers) -> list[torch.Tensor]:
    return [s.f + time.perf_counter_ns() % 1_000_003]


@idiom
def sleep(s: Buffers) -> list[torch.Tensor]:
    time.sleep(0.001)
    return [s.x + 1]


@idiom
def tensor_as_dict_key(s: Buffers) -> list[torch.Tensor]:
    return [s.x + {s.x: 1, s.lens: 2}[s.lens]]


@idiom
def tensor_in_list(s: Buffers) -> list[torch.Tensor]:
    """The same object is found without a comparison."""
    return [s.x + int(s.x in [s.x, s.lens])]


@idiom
def dev0dim_in_list(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(s.n in [1, 2, 3])]


@idiom
def bool_of_many(s: Buffers) -> list[torch.Tensor]:
    return [s.x + (1 if s.mask else 0)]


@idiom
def chained_comparison(s: Buffers) -> list[torch.Tensor]:
    return [s.x + int(0 < s.n < 4)]


@idiom
def weak_reference(s: Buffers) -> list[torch.Tensor]:
    y = s.x + 1
    reference = weakref.ref(y)
    del y
    return [s.x + (0 if reference() is None else 1)]


@idiom
def shallow_copy(s: Buffers) -> list[torch.Tensor]:
    copy.copy(s.x).add_(1)
    return [s.x]


@idiom
def address_taken(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.x.data_ptr() % 4 + int(s.x[1:].data_ptr() - s.x.data_ptr())]


@idiom
def array_interface(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.x.__cuda_array_interface__["shape"][0]]


@idiom
def dlpack_round_trip(s: Buffers) -> list[torch.Tensor]:
    y = torch.utils.dlpack.from_dlpack(s.x)
    y.add_(1)
    return [s.x]


@idiom
def swallowed_item(s: Buffers) -> list[torch.Tensor]:
    """The refusal is caught, but the capture is lost."""
    try:
        n = int(s.n)
    except RuntimeError:
        n = 0
    return [s.x + n]


@idiom
def swallowed_host_copy(s: Buffers) -> list[torch.Tensor]:
    """The refusal is caught, and the capture goes on without the copy."""
    try:
        s.x.copy_(s.lens_cpu)
    except RuntimeError:
        s.x.zero_()
    return [s.x + 1]


@idiom
def fallback_when_capture_refuses(s: Buffers) -> list[torch.Tensor]:
    """Both ways give the same."""
    try:
        zero = torch.tensor([0], dtype=torch.int32, device=s.dev)
    except RuntimeError:
        zero = torch.zeros(1, dtype=torch.int32, device=s.dev)
    return [torch.cat([zero, s.x])]


@idiom
def thread_of_host_work(s: Buffers) -> list[torch.Tensor]:
    total: list[int] = []
    thread = threading.Thread(target=lambda: total.append(sum(range(100))))
    thread.start()
    thread.join()
    return [s.x + total[0]]


# Caches


@program
def cached_table_warm(s: Buffers) -> list[Any]:
    """A table that was built before the capture is read by the graph; a change in place is seen."""

    @functools.cache
    def table(size: int) -> torch.Tensor:
        return torch.tensor(range(size), device=s.dev)

    table(6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + table(6)
    graph.replay()
    held = [y.tolist()]
    table(6).zero_()
    graph.replay()
    held.append(y.tolist())
    return held


@program
def cached_table_cold(s: Buffers) -> list[Any]:
    @functools.cache
    def table(size: int) -> torch.Tensor:
        return torch.tensor(range(size), device=s.dev)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + table(6)
    graph.replay()
    return y.tolist()


@program
def cached_table_made_in_capture(s: Buffers) -> list[Any]:
    """The cache keeps memory of the graph: eager code has the table only once a replay has computed it."""

    @functools.cache
    def table(size: int) -> torch.Tensor:
        return torch.arange(size, device=s.dev)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + table(6)
    graph.replay()
    held = [y.tolist(), (table(6) * 2).tolist()]
    table(6).zero_()
    graph.replay()
    return [*held, y.tolist(), table(6).tolist()]


@program
def cache_filled_by_two_graphs(s: Buffers) -> list[Any]:
    """The second graph reads a table that only the first one computes."""

    @functools.cache
    def table(size: int) -> torch.Tensor:
        return torch.arange(size, device=s.dev)

    graphs, outputs = [], []
    for _ in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outputs.append(s.x + table(6))
    graphs[0].replay()
    table(6).add_(100)
    held = []
    for which in (1, 0, 1):
        graphs[which].replay()
        held.append(outputs[which].tolist())
    return held


@program
def hooks_fire_at_capture_only(s: Buffers) -> list[Any]:
    """Python beside the launches: how often it has run after warm-up, after the capture, and after two replays."""
    ran: list[str] = []
    layer = torch.nn.Identity()
    layer.register_forward_hook(lambda module, args, output: ran.append("hook"))
    layer(s.f)
    counts = [len(ran)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(s.f) * 2
    counts.append(len(ran))
    graph.replay()
    graph.replay()
    counts.append(len(ran))
    return [counts, list(y.shape)]


# Threads


@program
def thread_launches_during_capture(s: Buffers) -> list[Any]:
    """Another thread writes to a buffer while this one captures: its stream, and the buffer after the capture and a replay."""
    buffer = torch.zeros(4, dtype=torch.int32, device=s.dev)
    torch.cuda.synchronize()
    said: list[Any] = []

    def work() -> None:
        try:
            said.append(torch.cuda.current_stream() == torch.cuda.default_stream())
            said.append(torch.cuda.is_current_stream_capturing())
            buffer.add_(1)
        except RuntimeError as error:
            said.append([type(error).__name__, str(error).splitlines()[0]])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    torch.cuda.synchronize()
    held = [buffer.tolist()]
    graph.replay()
    torch.cuda.synchronize()
    held.append(buffer.tolist())
    return [said, held, y.tolist()]


@program
def thread_waits_during_capture(s: Buffers) -> list[Any]:
    """Another thread reads a value, waits for the device, allocates, or pins memory while this one captures: what it got, and
    what became of the capture, in each mode."""
    works: list[tuple[str, Callable[[], Any]]] = [
        ("item", lambda: s.n.item()),
        ("synchronize", lambda: torch.cuda.synchronize()),
        ("allocate", lambda: torch.ones(40 << 20, dtype=torch.uint8, device=s.dev).numel()),
        ("pin", lambda: torch.empty(5 << 20, dtype=torch.uint8, pin_memory=True).numel()),
    ]
    outcomes: list[Any] = []
    for mode in ("global", "thread_local"):
        for name, wait in works:
            said: list[Any] = []

            def work(wait: Callable[[], Any] = wait, said: list[Any] = said) -> None:
                try:
                    said.append(wait())
                except RuntimeError as error:
                    said.append(str(error).splitlines()[0])

            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode=mode):
                    y = s.x + 1
                    thread = threading.Thread(target=work)
                    thread.start()
                    thread.join()
                graph.replay()
                said.append(y.tolist())
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
            torch.cuda.set_stream(torch.cuda.default_stream())
            torch.cuda.synchronize()
            outcomes.append([mode, name, said])
    return outcomes


@program
def capture_in_thread(s: Buffers) -> list[Any]:
    """Another thread captures, this one replays."""
    made: list[Any] = []

    def work() -> None:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                y = s.x + 1
            made.extend([graph, y])
        except RuntimeError as error:
            made.append(str(error).splitlines()[0])

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if len(made) != 2:
        return made
    made[0].replay()
    return [made[1].tolist()]


@program
def replay_in_thread(s: Buffers) -> list[Any]:
    said: list[Any] = []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1

    def work() -> None:
        try:
            graph.replay()
            torch.cuda.synchronize()
            said.append(y.tolist())
        except RuntimeError as error:
            said.append(str(error).splitlines()[0])

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return said
