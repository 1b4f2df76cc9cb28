"""The function mode that looks on while the implementation runs on a GPU: it sees calls, not ops.

A call costs it a tenth of what an op costs the dispatch mode (`watch`). It poisons what `torch.empty` and its like return, and
in a capture notes the outside memory among a call's arguments. What it cannot see (the ops that C++ calls on its own behalf:
`backward`, a scripted module) or could only see the outside of (an op with a Python body) is left to the dispatch mode: for one
call where the call is visible, for every capture from then on where `CudaDevice` finds that something was missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from capfuzz.devices import poison
from capfuzz.devices.cuda.watch import OutsideBuffer, Watch, poison_fresh, tensors_of
from capfuzz.devices.op_facts import reads_shape_alone

_USES, _ACCESSES, _MAKES_EMPTY, _NEEDS_WATCH = range(4)
_kinds: dict[Any, int] = {
    torch.empty: _MAKES_EMPTY,
    torch.empty_like: _MAKES_EMPTY,
    torch.empty_strided: _MAKES_EMPTY,
    torch.empty_permuted: _MAKES_EMPTY,
    torch.Tensor.new_empty: _MAKES_EMPTY,
    torch.Tensor.new_empty_strided: _MAKES_EMPTY,
    torch.Tensor.new: _NEEDS_WATCH,  # as it is called, `empty` or `tensor`
}
_COPIES = frozenset(["copy_", "__setitem__", "to", "cuda"])
_ATTRIBUTES = frozenset(["__get__", "__set__", "__delete__"])


def _kind_of(func: Any) -> int:
    """What kind of call `func` is; kept for PyTorch's own functions, which live as long as it does."""
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        return _NEEDS_WATCH
    name = getattr(func, "__name__", "")
    if isinstance(func, FunctionType):
        module = func.__module__ or ""
        ours = module.split(".")[0] == "torch" and not module.startswith("torch.autograd") and name != "backward"
        if not ours:
            return _NEEDS_WATCH
        kind = _USES
    elif callable(func) and type(func).__module__ == "builtins":
        kind = _ACCESSES if name in _ATTRIBUTES else _USES
    else:
        return _NEEDS_WATCH  # a higher-order op, or another package's object
    _kinds[func] = kind
    return kind


class CallWatch(TorchFunctionMode):
    """Poisons fresh memory and, in a capture, notes outside memory, call by call.

    `saw_empty`: whether memory was handed out unwritten. `is_blind`: whether it met a tensor that does not tell its memory, as
    inside `vmap`. With `above` the dispatch mode runs too and does the work; this one only notes what it would see without.
    """

    def __init__(self, side: int, above: Watch | None = None) -> None:
        super().__init__()
        self.side = side
        self.above = above
        self.saw_empty = False
        self.is_blind = False
        self.outside: dict[int, OutsideBuffer] = {}
        self._made: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = _kinds.get(func)
        if kind is None:
            kind = _kind_of(func)
        if kind == _NEEDS_WATCH:
            return self._watched(func, args, kwargs or {})
        first = args[0] if args else None
        version = _version(first) if self.side == poison.CAPTURE else None
        result = func(*args, **kwargs) if kwargs else func(*args)
        if kind == _ACCESSES:
            return result
        if kind == _MAKES_EMPTY and result.is_cuda and not poison.torch_fills_memory():
            self.saw_empty = True
            if self.above is None:
                poison_fresh(result, self.side)
        if self.side == poison.CAPTURE and not (version is not None and version == _version(first) and _is_part(result, first)):
            self._note(func, args, kwargs, result)
        return result

    def _watched(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        watch = self.above
        if watch is None:
            watch = Watch(self.side, None)
            watch.share(self.outside, self._made)
        empties, known = watch.empties, set(watch.outside)
        try:
            if self.above is not None:
                return func(*args, **kwargs)
            with watch:
                return func(*args, **kwargs)
        finally:
            self.saw_empty = self.saw_empty or watch.empties > empties
            self.outside.update((key, used) for key, used in watch.outside.items() if key not in known)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A call that answers with a number, a shape or the like has launched nothing that a replay would run again.

        What returns nothing (`x[0] = y`) has.
        """
        made = [result] if isinstance(result, torch.Tensor) else tensors_of(result)
        if made or result is None:
            self._note_used(func, args[1:] if reads_shape_alone(func.__name__) else args)
            if kwargs:
                self._note_used(func, kwargs.values())
            for tensor in made:
                storage = self._storage(tensor)
                if storage is not None and storage._cdata not in self.outside:
                    self._made.add(storage._cdata)

    def _note_used(self, func: Any, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                storage = self._storage(value)
                if storage is not None and storage._cdata not in self._made and storage._cdata not in self.outside:
                    self._note_outside(func, value, storage)
            elif isinstance(value, (list, tuple)):
                self._note_used(func, value)

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        try:
            return tensor.untyped_storage()
        except NotImplementedError:
            self.is_blind = True
            return None

    def _note_outside(self, func: Any, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        buffer = OutsideBuffer.used_by(func.__name__, tensor, storage, _COPIES)
        if buffer is not None:
            self.outside[storage._cdata] = buffer


def _is_part(result: Any, first: Any) -> bool:
    """Whether a call gave back its first tensor, or views of it."""
    if isinstance(result, (list, tuple)):
        return all(_is_part(part, first) for part in result)
    if result is first or not isinstance(result, torch.Tensor):
        return result is first
    return result._is_view() and (result._base is first or result._base is first._base)


def _version(value: Any) -> int | None:
    """How often a tensor was written. `x.contiguous()` may return `x` itself, and has then done nothing."""
    if not isinstance(value, torch.Tensor):
        return None
    return None if value.is_inference() else value._version
