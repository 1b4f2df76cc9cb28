"""Graphs that the implementation captures by itself, as an engine's graph runner does.

PyTorch looks at a graph's inputs the same way (`check_input_liveness`, torch/utils/_cuda_debug.py): with a mode from
`capture_begin` to `capture_end`, and a look at what that has noted before each replay.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch

from capfuzz.devices import poison
from capfuzz.devices.cuda.watch import Watch, tensors_of
from capfuzz.devices.op_facts import OpFacts

_METHODS = ("capture_begin", "capture_end", "replay")


class _GraphWatch(Watch):
    """The watch of one such capture. What a graph that lives has made is no outside memory: its pool keeps it."""

    def __init__(self, graphs: UserGraphs) -> None:
        super().__init__(poison.CAPTURE, None)
        self._graphs = graphs
        self.made_at: set[int] = set()
        """Addresses, which nothing else gets while the pool lives."""
        self._unwritten: list[tuple[int, int, torch.dtype, torch.device]] = []

    def _poison(self, fresh: torch.Tensor) -> None:
        """To fill it here would record the fill, and each replay would undo what was written from outside the graph."""
        storage = fresh.untyped_storage()
        self._unwritten.append((storage.data_ptr(), storage.nbytes(), fresh.dtype, fresh.device))

    def poison_unwritten(self) -> None:
        """Once the capture has ended: to keep the tensors until then would keep their memory from being handed out again."""
        for address, nbytes, dtype, device in self._unwritten:
            storage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
            poison.fill(torch.empty(0, dtype=dtype, device=device).set_(storage), poison.CAPTURE)
        if self._unwritten:
            torch.cuda.synchronize()

    def _note_made(self, result: Any) -> None:
        super()._note_made(result)
        self.made_at.update(tensor.untyped_storage().data_ptr() for tensor in tensors_of(result) if tensor.is_cuda)

    def _note_outside(self, facts: OpFacts, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        if not self._graphs.made(storage.data_ptr()):
            super()._note_outside(facts, tensor, storage)


class UserGraphs:
    """Looks at every capture by `torch.cuda.CUDAGraph`, op by op; a replay through freed memory raises `DanglingBufferError`.

    Use it as a context manager. What captures with `own_graph` is left alone.
    """

    def __init__(self) -> None:
        self._watches: WeakKeyDictionary[torch.cuda.CUDAGraph, _GraphWatch] = WeakKeyDictionary()
        self._open: list[_GraphWatch] = []
        self.failed_op: str | None = None
        """The op that failed in a capture, since this was last set."""

    def __enter__(self) -> UserGraphs:
        kind = self._kind = torch.cuda.CUDAGraph
        self._originals = {name: kind.__dict__[name] for name in _METHODS}
        self.own_graph = type("OwnGraph", (kind,), dict(self._originals))
        begin, end, replay = self._originals.values()

        @functools.wraps(begin)
        def capture_begin(graph: torch.cuda.CUDAGraph, *args: Any, **kwargs: Any) -> None:
            self._watches.pop(graph, None)
            begin(graph, *args, **kwargs)
            watch = _GraphWatch(self)
            watch.__enter__()  # type: ignore[no-untyped-call]
            self._open.append(watch)
            self._watches[graph] = watch

        @functools.wraps(end)
        def capture_end(graph: torch.cuda.CUDAGraph) -> None:
            watch = self._watches.get(graph)
            if watch is not None and watch in self._open:
                self._close(watch)
            end(graph)
            if watch is not None and not self._open:
                watch.poison_unwritten()

        @functools.wraps(replay)
        def replay_alive(graph: torch.cuda.CUDAGraph) -> None:
            watch = self._watches.get(graph)
            for buffer in () if watch is None else watch.outside.values():
                buffer.refuse_freed()
            replay(graph)

        for name, looking in zip(_METHODS, (capture_begin, capture_end, replay_alive), strict=True):
            setattr(kind, name, looking)
        return self

    def __exit__(self, *exc: object) -> None:
        self.abandon()
        for name, original in self._originals.items():
            setattr(self._kind, name, original)

    def abandon(self) -> None:
        """Stops looking at captures that were begun and never ended."""
        while self._open:
            self._close(self._open[-1])

    def made(self, address: int) -> bool:
        """Whether a graph that lives has made the memory that begins here."""
        return any(address in watch.made_at for watch in self._watches.values())

    def _close(self, watch: _GraphWatch) -> None:
        self._open.remove(watch)
        self.failed_op = watch.failed_op or self.failed_op
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
