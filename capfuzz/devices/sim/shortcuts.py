"""Calls that need no dispatch mode in eager, learnt by watching them once.

Handing every ATen op to Python costs far more than running it. In eager a call whose tensors are all on the device needs
that only if it meets a rule: a host tensor, a factory, a random op, fresh memory to be poisoned. The first call of a *shape*
(the function, the types of its arguments, its flags and options) goes the long way and is watched; if it was made of plain
kernels and views alone, later calls of that shape run with the mode switched off, and their result is tagged. Nothing is
learnt from empty tensors, for which ops take short cuts of their own. Under a tracer and beside a capture every call goes the
long way; during capture see `recorded_calls`.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F

from capfuzz.devices.sim.tensor import SimTensor, tag_all

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime

_PLAIN_TYPES = frozenset({SimTensor, int, float, bool, type(None), torch.dtype, slice, type(...)})
_OPTION_TYPES = frozenset({int, float, bool, str, type(None), torch.dtype})
_MOST_KEYS = 4096
# Functions in Python that hand their arguments on to one of C++, whatever those are.
_FORWARDING: frozenset[Any] = frozenset({F.pad, torch.split, torch.Tensor.split, torch.Tensor.__rsub__})
Key = tuple[Any, ...]
Learnt = TypeVar("Learnt")
_known: dict[Key, bool] = {}


def key_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Key | None:
    """What later calls are recognised by; None for a call that always goes the long way."""
    if not args or type(args[0]) is not SimTensor or (type(func) is FunctionType and func not in _FORWARDING):
        return None
    if torch._C._len_torch_dispatch_stack() != 1:  # a mode of the user's wants to see every op
        return None
    types: Key = tuple(map(type, args))
    records = torch.is_grad_enabled()
    for position, kind in enumerate(types):
        if records and kind is SimTensor and args[position].requires_grad:  # autograd saves tensors, which must be tagged
            return None
        if kind is float or kind is bool:  # a flag or a probability decides which ops run; an integer only how far
            types = (*types, position, args[position])
        if kind not in _PLAIN_TYPES:
            if kind is not tuple or not all(type(item) is int for item in args[position]):
                return None
        elif kind is slice and not _plain_slice(args[position]):
            return None
    if not kwargs:
        return (func, types)
    if any(type(value) not in _OPTION_TYPES for value in kwargs.values()) or "device" in kwargs:
        return None
    return (func, types, *kwargs.items())


def _plain_slice(bounds: slice) -> bool:
    """A bound that is a device tensor is read by the host."""
    return not (
        isinstance(bounds.start, torch.Tensor) or isinstance(bounds.stop, torch.Tensor) or isinstance(bounds.step, torch.Tensor)
    )


def can_teach(args: tuple[Any, ...]) -> bool:
    """Nothing is learnt from empty tensors."""
    return all(value.numel() for value in args if type(value) is SimTensor)


def remember(known: dict[Key, Learnt], key: Key, learnt: Learnt) -> None:
    if len(known) >= _MOST_KEYS:
        known.clear()
    known[key] = learnt


def run(runtime: Runtime, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Runs a call the short way if its shape is known to allow it, else the long way, and remembers which."""
    plain = _known.get(key)
    if plain:
        try:
            with torch._C._DisableTorchDispatch():
                result = func(*args, **kwargs) if kwargs else func(*args)
        except (IndexError, RuntimeError):  # the long way tells an assert of the device from a refusal of the host
            return func(*args, **kwargs) if kwargs else func(*args)
        if type(result) is torch.Tensor:
            result.__class__ = SimTensor
            return result
        return tag_all(result)
    if plain is None and can_teach(args):
        runtime.met_a_rule = False
        result = func(*args, **kwargs) if kwargs else func(*args)
        remember(_known, key, not runtime.met_a_rule)
        return result
    return func(*args, **kwargs) if kwargs else func(*args)
