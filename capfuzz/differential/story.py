"""The story of one check: every op that ran, in whichever call, and what became of the memory that it made.

Some faults are not where an eager call and a replay part: memory that was freed, host buffers that a capture has changed, and
all that an engine's own runner does in its calls. Their line is found by telling the whole check again, to one tracer.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial
from types import CodeType
from typing import Any

import torch

from capfuzz.devices.base import Body, Buffer, Device, Graph
from capfuzz.devices.layout import Argument
from capfuzz.devices.trace import Location, OpRecord, here, is_user_file
from capfuzz.devices.tracer import Tracer
from capfuzz.differential.blame import ImplementationTracer, Outputs, last_write, storage_of, tensors_of, writes_in_place
from capfuzz.differential.runner import Runner
from capfuzz.differential.verdict import Blame


class Piece:
    """Memory that an op made; `let_go` is the user's line at which the tensor went that the op had made of it."""

    def __init__(self, maker: OpRecord, tensor: torch.Tensor, is_a_graphs: bool) -> None:
        self.maker = maker
        self.is_a_graphs = is_a_graphs
        self.let_go: Location | None = None
        self._tensor = weakref.ref(tensor, self._went)

    def _went(self, _: object) -> None:
        frame = sys._getframe(1)
        if is_user_file(frame.f_code.co_filename):  # else a graph or the check was the last to hold it
            self.let_go = here(frame)


class Story(ImplementationTracer):
    """Every op of a check; of each that a graph recorded, the pieces of memory that it used."""

    def __init__(self, codes: tuple[CodeType, ...]) -> None:
        super().__init__(codes, values=False, of_capture=True)
        self._given: set[int] = set()  # the storages of arguments
        self._pieces: dict[int, Piece] = {}  # by storage: the newest one there
        self._captured: list[tuple[OpRecord, list[Piece]]] = []

    def add(
        self,
        op: str,
        kind: str,
        written: Any,
        location: Location | None = None,
        read: Any = (),
        baked: tuple[Any, ...] = (),
    ) -> None:
        super().add(op, kind, written, location, read, baked)
        record = self.records[-1]
        is_captured = torch.cuda.is_current_stream_capturing()
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            looked_at = set(map(storage_of, tensors_of(read).values()))
            for tensor in tensors_of(written).values():
                self._keep(record, tensor, looked_at, is_captured)
            if is_captured and kind in ("kernel", "copy"):
                self._captured.append((record, self._pieces_of(looked_at.union(record.storages))))

    def _pieces_of(self, storages: set[int]) -> list[Piece]:
        """All that is not an argument; none at all, where one of them is not known."""
        unknown = storages - self._given - self._pieces.keys()
        return [] if unknown else [self._pieces[storage] for storage in storages - self._given]

    def _keep(self, record: OpRecord, tensor: torch.Tensor, looked_at: set[int], is_captured: bool) -> None:
        storage = storage_of(tensor)
        is_new = record.kind != "view" and storage not in looked_at and not writes_in_place(record)
        is_unknown = storage not in self._pieces and storage not in self._given
        if is_new or (record.kind == "copy" and is_unknown):  # `to` copies into what it has just made
            self._pieces[storage] = Piece(record, tensor, is_captured)
            self._given.discard(storage)

    def give(self, storage: int) -> None:
        """An argument lies there now."""
        self._given.add(storage)
        self._pieces.pop(storage, None)

    def lost(self, reader: Blame) -> Piece | None:
        """The outside memory of a graph that the op `reader` of it would use, and that is gone; None where it is not known."""
        uses = [
            [piece for piece in pieces if not piece.is_a_graphs]
            for record, pieces in reversed(self._captured)
            if (record.op, record.location) == (reader.op, reader.location)
        ]
        let_go = [piece for pieces in uses for piece in pieces if piece.let_go is not None]
        only = [pieces[0] for pieces in uses if len(pieces) == 1]
        return next(iter(let_go + only), None)

    def last_write(self, storages: set[int]) -> OpRecord | None:
        """The last op that wrote in place where an argument lies."""
        for record in reversed(self.records):
            if storages.intersection(record.storages) and (writes_in_place(record) or record.kind == "copy"):
                return record
        return None


class Watched:
    """A device that tells a story of all that runs on it. It stands for the device in one check."""

    def __init__(self, device: Device, story: Story, runner: Runner | None) -> None:
        self._device = device
        self._story = story
        self._runner = runner
        self._calls: object = self  # what the runner's calls are of
        self._buffers: list[tuple[Argument, int]] = []
        self._call: tuple[int, int, Outputs] = (0, 0, {})  # the runner's last: from which op to which, and its answer
        self._before = self._behind = 0  # the capture, with the host's part for it: from which op to which

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def buffer(self, argument: Argument) -> Buffer:
        made = self._device.buffer(argument)
        storage = made.tensor.untyped_storage()._cdata
        self._story.give(storage)
        self._buffers.append((argument, storage))
        return made

    def eager(self, body: Body, seed: int, tracer: Tracer | None = None) -> Any:
        begin = len(self._story.records)
        result = self._device.eager(body, seed, self._story)
        if self._runner is not None and body is self._runner.make:
            self._calls = _called(result)
        elif _called(body) is self._calls:
            self._call = begin, len(self._story.records), self._story.outputs(result)
        return result

    def warm_up(self, body: Body, seed: int) -> Any:
        result = self.eager(body, seed)
        self._before = self._behind = len(self._story.records)
        return result

    def capture(self, body: Body, seed: int, tracer: Tracer | None = None) -> Graph:
        graph = self._device.capture(body, seed, self._story)
        self._behind = len(self._story.records)
        return graph

    # -- what the story says -------------------------------------------------------------------------------------------

    def writer_of(self, argument: Argument) -> Blame | None:
        """The line that wrote an argument's buffer last; None for a write that no op shows, as NumPy's."""
        storages = {storage for given, storage in self._buffers if given is argument}
        record = self._story.last_write(storages)
        return None if record is None else Blame(record.location, record.op)

    def changer_of_host_memory(self) -> Blame | None:
        """The line that wrote to host memory last for the capture, and that no eager call ran; None where there is no such."""
        records = self._story.records
        behind = len(records) if self._behind == self._before else self._behind  # the capture never came to its end
        eager = {(record.op, record.location) for record in records[: self._before]}
        for record in reversed(records[self._before : behind] if self._before else []):
            if record.kind == "host" and writes_in_place(record) and (record.op, record.location) not in eager:
                return Blame(record.location, record.op)
        return None

    def loser_of(self, reader: Blame) -> Blame | None:
        """The line that lost the memory which the op `reader` uses: the one that let go of it, else the implementation's own
        that made it, and makes other memory for the next call. None where nothing shows it."""
        piece = self._story.lost(reader)
        if piece is None:
            return None
        return Blame(piece.let_go or piece.maker.outer or piece.maker.location, None)

    def answerer(self, path: str) -> Blame | None:
        """The line of the runner's last call that wrote the answer at `path`, or that took a part of its memory for it."""
        begin, end, answer = self._call
        record = last_write(self._story.records[begin:end], answer, path)
        return None if record is None else Blame(record.location, record.op)


def _called(body: Any) -> Any:
    """What a call is of: partials of partials are one."""
    return body.func if isinstance(body, partial) else body
