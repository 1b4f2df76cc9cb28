"""Streams and events: forks, joins, what is forbidden while a stream captures, and what an event is worth afterwards."""

from __future__ import annotations

from typing import Any

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom, program

# Forks and joins


@idiom
def side_stream_unforked(s: Buffers) -> list[torch.Tensor]:
    st = torch.cuda.Stream()
    with torch.cuda.stream(st):
        y = s.x + 1
    return [y]


@idiom
def side_stream_unjoined(s: Buffers) -> list[torch.Tensor]:
    st = torch.cuda.Stream()
    st.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(st):
        y = s.x + 1
    return [y]


@idiom
def fork_join_streams(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = s.x + 1
    z = s.lens * 2
    main.wait_stream(side)
    return [y + z]


@idiom
def fork_join_events(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    forked, joined = torch.cuda.Event(), torch.cuda.Event()
    forked.record(main)
    with torch.cuda.stream(side):
        forked.wait()
        y = s.x + 1
        joined.record()
    joined.wait()
    return [y + s.lens]


@idiom
def fork_join_one_event(s: Buffers) -> list[torch.Tensor]:
    """The same event object forks and joins."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    event = main.record_event()
    side.wait_event(event)
    with torch.cuda.stream(side):
        y = s.x + 1
        event.record(side)
    main.wait_event(event)
    return [y]


@idiom
def fork_join_in_place(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    s.out[:6].copy_(s.x)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        s.out[:3].add_(1)
    s.out[3:6].add_(2)
    main.wait_stream(side)
    s.out.mul_(2)
    return [s.out]


@idiom
def fork_join_twice(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    y = s.x
    for _ in range(2):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = y + 1
        main.wait_stream(side)
        y = y * 2
    return [y]


@idiom
def two_side_streams(s: Buffers) -> list[torch.Tensor]:
    main = torch.cuda.current_stream()
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    parts = []
    for i, side in enumerate(sides):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            parts.append(s.x * (i + 1))
    for side in sides:
        main.wait_stream(side)
    return [torch.cat(parts)]


@idiom
def two_side_streams_one_unjoined(s: Buffers) -> list[torch.Tensor]:
    main = torch.cuda.current_stream()
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    for i, side in enumerate(sides):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            s.out[i].add_(1)
    main.wait_stream(sides[0])
    return [s.x + 1]


@idiom
def nested_fork(s: Buffers) -> list[torch.Tensor]:
    main, outer, inner = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    outer.wait_stream(main)
    with torch.cuda.stream(outer):
        y = s.x + 1
        inner.wait_stream(outer)
        with torch.cuda.stream(inner):
            z = y * 2
        outer.wait_stream(inner)
        y = y + z
    main.wait_stream(outer)
    return [y]


@idiom
def nested_fork_joined_directly(s: Buffers) -> list[torch.Tensor]:
    """The inner stream is joined to the first, and the outer one through it alone."""
    main, outer, inner = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    outer.wait_stream(main)
    with torch.cuda.stream(outer):
        y = s.x + 1
    inner.wait_stream(outer)
    with torch.cuda.stream(inner):
        z = y * 2
    main.wait_stream(inner)
    return [z]


@idiom
def nested_fork_inner_unjoined(s: Buffers) -> list[torch.Tensor]:
    main, outer, inner = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    outer.wait_stream(main)
    with torch.cuda.stream(outer):
        y = s.x + 1
    inner.wait_stream(outer)
    with torch.cuda.stream(inner):
        s.out.add_(1)
    main.wait_stream(outer)
    return [y]


@idiom
def fork_without_work(s: Buffers) -> list[torch.Tensor]:
    """A stream that joined the capture and was given nothing to do."""
    torch.cuda.Stream().wait_stream(torch.cuda.current_stream())
    return [s.x + 1]


@idiom
def fork_at_start_without_work(s: Buffers) -> list[torch.Tensor]:
    y = s.x + 1
    torch.cuda.Stream().wait_stream(torch.cuda.current_stream())
    return [y]


@idiom
def work_after_join(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = s.x + 1
    main.wait_stream(side)
    with torch.cuda.stream(side):
        s.out.add_(1)
    return [y]


@idiom
def event_recorded_before_last_work(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = s.x + 1
        event = side.record_event()
        s.out.add_(1)
    main.wait_event(event)
    return [y]


@idiom
def event_recorded_without_work_after(s: Buffers) -> list[torch.Tensor]:
    """After the join the side stream records an event, and does nothing else."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = s.x + 1
    main.wait_stream(side)
    side.record_event()
    return [y]


@idiom
def event_recorded_again(s: Buffers) -> list[torch.Tensor]:
    """Waiting is for the last record."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        y = s.x + 1
        event.record()
        y = y * 2
        event.record()
    event.wait(main)
    return [y]


@idiom
def wait_of_own_event(s: Buffers) -> list[torch.Tensor]:
    y = s.x + 1
    torch.cuda.current_stream().wait_event(torch.cuda.current_stream().record_event())
    return [y * 2]


@idiom
def wait_event_never_recorded(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.current_stream().wait_event(torch.cuda.Event())
    return [s.x + 1]


@idiom
def wait_for_default_stream(s: Buffers) -> list[torch.Tensor]:
    """Work that is not captured lies on the other stream."""
    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
    return [s.x + 1]


@idiom
def wait_for_idle_stream(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    return [s.x + 1]


@idiom
def default_stream_waits(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())
    return [s.x + 1]


@idiom
def record_stream(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    y = s.x + 1
    side.wait_stream(main)
    with torch.cuda.stream(side):
        z = y * 2
    y.record_stream(side)
    del y
    w = s.x + 7
    main.wait_stream(side)
    z.record_stream(main)
    return [z, w]


# Which stream is current


@idiom
def stream_none(s: Buffers) -> list[torch.Tensor]:
    with torch.cuda.stream(None):
        return [s.x + 1]


@idiom
def stream_of_itself(s: Buffers) -> list[torch.Tensor]:
    with torch.cuda.stream(torch.cuda.current_stream()):
        return [s.x + 1]


@idiom
def stream_as_context(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with side:
        y = s.x + 1
    main.wait_stream(side)
    return [y]


@idiom
def stream_with_priority(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = s.x + 1
    main.wait_stream(side)
    return [y]


@idiom
def set_stream(s: Buffers) -> list[torch.Tensor]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    torch.cuda.set_stream(side)
    try:
        y = s.x + 1
    finally:
        torch.cuda.set_stream(main)
    main.wait_stream(side)
    return [y]


@idiom
def external_stream(s: Buffers) -> list[torch.Tensor]:
    main = torch.cuda.current_stream()
    side = torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        y = s.x + 1
    main.wait_stream(side)
    return [y]


@idiom
def default_stream_work(s: Buffers) -> list[torch.Tensor]:
    with torch.cuda.stream(torch.cuda.default_stream()):
        y = s.x + 1
    return [y]


@program
def current_stream_in_capture(s: Buffers) -> list[Any]:
    mine = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream()
    with torch.cuda.graph(graph, stream=mine):
        y = s.x + 1
        inside = torch.cuda.current_stream()
    graph.replay()
    after = torch.cuda.current_stream()
    return [inside == mine, inside == before, inside == torch.cuda.default_stream(), after == before, y.tolist()]


@program
def capturing_asked_on_side_stream(s: Buffers) -> list[Any]:
    """`is_current_stream_capturing` on a side stream: before the fork, after it, after the join, after the capture."""
    side = torch.cuda.Stream()
    asked = []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        main = torch.cuda.current_stream()
        y = s.x + 1
        with torch.cuda.stream(side):
            asked.append(torch.cuda.is_current_stream_capturing())
        side.wait_stream(main)
        with torch.cuda.stream(side):
            asked.append(torch.cuda.is_current_stream_capturing())
            y.add_(1)
        main.wait_stream(side)
        with torch.cuda.stream(side):
            asked.append(torch.cuda.is_current_stream_capturing())
    with torch.cuda.stream(side):
        asked.append(torch.cuda.is_current_stream_capturing())
    graph.replay()
    return [asked, y.tolist()]


# Waiting on the host


@idiom
def event_record(s: Buffers) -> list[torch.Tensor]:
    e = torch.cuda.Event()
    e.record()
    return [s.x + 1]


@idiom
def event_sync(s: Buffers) -> list[torch.Tensor]:
    e = torch.cuda.Event()
    e.record()
    e.synchronize()
    return [s.x + 1]


@idiom
def event_query(s: Buffers) -> list[torch.Tensor]:
    e = torch.cuda.Event()
    e.record()
    e.query()
    return [s.x + 1]


@idiom
def event_never_recorded_sync(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.Event().synchronize()
    return [s.x + 1]


@idiom
def event_never_recorded_query(s: Buffers) -> list[torch.Tensor]:
    assert torch.cuda.Event().query()
    return [s.x + 1]


@idiom
def event_of_idle_stream_query(s: Buffers) -> list[torch.Tensor]:
    """The event is recorded on a stream that takes no part in the capture."""
    torch.cuda.Stream().record_event().query()
    return [s.x + 1]


@idiom
def event_with_timing_recorded(s: Buffers) -> list[torch.Tensor]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    y = s.x + 1
    end.record()
    return [y]


@idiom
def stream_sync(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.current_stream().synchronize()
    return [s.x + 1]


@idiom
def stream_query(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.current_stream().query()
    return [s.x + 1]


@idiom
def other_stream_sync(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.Stream().synchronize()
    return [s.x + 1]


@idiom
def other_stream_query(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.Stream().query()
    return [s.x + 1]


@idiom
def default_stream_sync(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.default_stream().synchronize()
    return [s.x + 1]


@idiom
def device_sync(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.synchronize()
    return [s.x + 1]


@idiom
def device_sync_unless_capturing(s: Buffers) -> list[torch.Tensor]:
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return [s.x + 1]


@idiom
def sync_at_end(s: Buffers) -> list[torch.Tensor]:
    """Nothing follows in the body: only the end of the capture can tell."""
    y = s.x + 1
    torch.cuda.current_stream().synchronize()
    return [y]


@idiom
def item_on_unforked_stream(s: Buffers) -> list[torch.Tensor]:
    with torch.cuda.stream(torch.cuda.Stream()):
        n = int(s.n)
    return [s.x + n]


@idiom
def sleep_kernel(s: Buffers) -> list[torch.Tensor]:
    torch.cuda._sleep(1000)
    return [s.x + 1]


# Events that outlive a capture, or come from before it


@program
def event_from_before_waited_for(s: Buffers) -> list[Any]:
    event = torch.cuda.current_stream().record_event()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda.current_stream().wait_event(event)
        y = s.x + 1
    graph.replay()
    return y.tolist()


@program
def event_from_before_asked(s: Buffers) -> list[Any]:
    event = torch.cuda.current_stream().record_event()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        done = event.query()
        y = s.x + 1
    graph.replay()
    return [done, y.tolist()]


@program
def event_from_before_recorded_inside(s: Buffers) -> list[Any]:
    """An event that was in use before serves to fork and join."""
    event, side = torch.cuda.current_stream().record_event(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        event.record()
        with torch.cuda.stream(side):
            event.wait()
            y = s.x + 1
            event.record()
        event.wait()
    graph.replay()
    return y.tolist()


@program
def captured_event_asked_after(s: Buffers) -> list[Any]:
    """An event recorded in a capture, after the capture and after a replay."""
    event = torch.cuda.Event()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
        event.record()
    said: list[Any] = []
    for replays in range(2):
        for ask in (event.query, event.synchronize):
            try:
                said.append(ask())
            except Exception as error:
                said.append([type(error).__name__, str(error).splitlines()[0]])
        if replays == 0:
            graph.replay()
            torch.cuda.synchronize()
    return [said, y.tolist()]


@program
def captured_event_waited_for_after(s: Buffers) -> list[Any]:
    event = torch.cuda.Event()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
        event.record()
    graph.replay()
    torch.cuda.Stream().wait_event(event)
    return y.tolist()


@program
def captured_event_recorded_again(s: Buffers) -> list[Any]:
    """Outside the capture the event is recorded once more, and is an ordinary one again."""
    event = torch.cuda.Event()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = s.x + 1
        event.record()
    graph.replay()
    event.record()
    event.synchronize()
    return [event.query(), y.tolist()]


@program
def captured_events_timed(s: Buffers) -> list[Any]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        start.record()
        y = s.x + 1
        end.record()
    graph.replay()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) >= 0, y.tolist()]


@program
def external_events(s: Buffers) -> list[Any]:
    """Events made for use across a graph's border: recorded by the replay, waited for by the host."""
    start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        start.record()
        y = s.x + 1
        end.record()
    graph.replay()
    end.synchronize()
    return [end.query(), start.elapsed_time(end) >= 0, y.tolist()]


@program
def unforked_write_runs_at_once(s: Buffers) -> list[Any]:
    """A write on a stream outside the capture: what the buffer holds after the capture, and after a replay."""
    side = torch.cuda.Stream()
    buffer = torch.zeros(4, dtype=torch.int32, device=s.dev)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        y = s.x + 1
        with torch.cuda.stream(side):
            buffer.add_(1)
    torch.cuda.synchronize()
    held = [buffer.tolist()]
    graph.replay()
    torch.cuda.synchronize()
    held.append(buffer.tolist())
    return [held, y.tolist()]


@program
def streams_come_round(s: Buffers) -> list[Any]:
    """Streams come from a pool: which of the next forty is the first one again."""
    first = torch.cuda.Stream()
    return [i for i in range(1, 41) if torch.cuda.Stream() == first]
