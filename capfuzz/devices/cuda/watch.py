"""The dispatch mode that looks on while the implementation runs on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from capfuzz.devices import poison
from capfuzz.devices.errors import DanglingBufferError
from capfuzz.devices.op_facts import OpFacts
from capfuzz.devices.trace import Location, here
from capfuzz.devices.tracer import Tracer

_COPIES = frozenset(["copy_", "_to_copy"])  # a graph that copies from pinned memory goes on reading it
_facts: dict[int, OpFacts] = {}


def facts_of(func: Any) -> OpFacts:
    known = _facts.get(id(func))
    if known is None:
        known = _facts[id(func)] = OpFacts(func)
    return known


@dataclass(frozen=True)
class OutsideBuffer:
    """Memory that existed before the capture and that the graph uses: who used it first."""

    storage: StorageWeakRef
    address: int
    what: str
    op: str
    location: Location | None

    @classmethod
    def used_by(
        cls, op: str, tensor: torch.Tensor, storage: torch.UntypedStorage, copies: frozenset[str]
    ) -> OutsideBuffer | None:
        """None where nothing outlives the launch that could be freed: no bytes, or host memory that none of `copies` reads."""
        if storage.nbytes() and (tensor.is_cuda or (op in copies and tensor.is_pinned())):
            what = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            return cls(StorageWeakRef(storage), storage.data_ptr(), what, op, here())
        return None

    @property
    def is_freed(self) -> bool:
        """Also where its storage has other memory now: one that grows (`resize_`, an `out=` too small) frees what it had."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return storage is None or storage.data_ptr() != self.address

    def refuse_freed(self) -> None:
        if self.is_freed:
            raise DanglingBufferError(self.what, self.op, self.location)


@dataclass(frozen=True)
class Kept:
    """What one captured op wrote: copies that every replay fills anew."""

    op: str
    kind: str
    location: Location | None
    storages: tuple[int, ...]
    copies: list[torch.Tensor]


class Watch(TorchDispatchMode):
    """Poisons fresh memory; in a capture, notes outside memory; with a tracer, traces (eager) or keeps copies (capture).

    With `waits` it waits for the device after each op: an assert of a kernel is then raised by its own line, not by a later.
    """

    def __init__(self, side: int, tracer: Tracer | None, waits: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = waits
        self.side = side
        self.tracer = tracer
        self.failed_op: str | None = None
        self.outside: dict[int, OutsideBuffer] = {}
        self.kept: list[Kept] = []
        self.empties = 0
        """How often memory was handed out unwritten."""
        self._made: set[int] = set()

    def share(self, outside: dict[int, OutsideBuffer], made: set[int]) -> None:
        """Goes on with what is known so far, by storage: the outside memory, and what the capture itself made."""
        self.outside, self._made = outside, made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = _facts.get(id(func)) or facts_of(func)
        try:
            result = func(*args, **kwargs)
            if self.waits:
                torch._C._cuda_synchronize()
        except Exception:
            self.failed_op = facts.name
            raise
        if self.side == poison.CAPTURE:
            if not facts.mutated and not facts.is_view:
                self._note_made(result)
            if not facts.is_view:  # a view launches nothing
                self._note_used(facts, args[1:] if facts.reads_shape_alone else args)
                if kwargs:
                    self._note_used(facts, kwargs.values())
        if facts.is_empty and isinstance(result, torch.Tensor) and result.is_cuda and not poison.torch_fills_memory():
            self.empties += 1
            self._poison(result)
        if self.tracer is not None:
            self._trace(self.tracer, func, facts, args, kwargs, result)
        return result

    # -- memory --------------------------------------------------------------------------------------------------------

    def _poison(self, fresh: torch.Tensor) -> None:
        poison_fresh(fresh, self.side)

    def _note_made(self, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._made.add(result.untyped_storage()._cdata)
        else:
            self._made.update(_storage(tensor) for tensor in tensors_of(result))

    def _note_used(self, facts: OpFacts, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if storage._cdata not in self._made and storage._cdata not in self.outside:
                    self._note_outside(facts, value, storage)
            elif isinstance(value, (list, tuple)):
                self._note_used(facts, value)

    def _note_outside(self, facts: OpFacts, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        buffer = OutsideBuffer.used_by(facts.name, tensor, storage, _COPIES)
        if buffer is not None:
            self.outside[storage._cdata] = buffer

    # -- tracing -------------------------------------------------------------------------------------------------------

    def _trace(
        self, tracer: Tracer, func: Any, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        written = facts.written(args, kwargs) or list(tensors_of(result))
        sides = {tensor.is_cuda for tensor in tensors_of((*args, *kwargs.values(), result))}
        on_device = True in sides
        kind = "view" if facts.is_view else "alloc" if facts.is_empty else "kernel" if on_device else "host"
        if kind == "kernel" and len(sides) == 2 and facts.name.split(".")[0] in ("copy_", "_to_copy"):
            kind = "copy"
        if tracer.of_capture:
            if kind in ("kernel", "copy") and not torch.cuda.is_current_stream_capturing():
                kind = "at once"
            tracer.add_call(facts.name, kind, func, args, kwargs, result)
        elif on_device and self.side == poison.CAPTURE:
            copies = [] if kind in ("view", "alloc") else [tensor.detach().clone() for tensor in written if tensor.is_cuda]
            self.kept.append(Kept(facts.name, kind, here(), tuple(_storage(tensor) for tensor in written), copies))
        elif on_device:
            tracer.add(facts.name, kind, written)


def poison_fresh(fresh: torch.Tensor, side: int) -> None:
    """An eager call may capture a graph by itself; what that makes is poisoned when the capture has ended: `user_graphs`."""
    if side == poison.CAPTURE or not torch.cuda.is_current_stream_capturing():
        poison.fill(fresh, side)


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
