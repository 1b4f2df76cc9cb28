"""Tensors that say they are on `cuda:0`, and host memory that says it is pinned.

A simulated device tensor is a CPU tensor whose class is `SimTensor`. PyTorch's C++ sees a CPU tensor and takes the code
path that it takes for a CUDA tensor in all that matters here (a scalar stored to a 0-dim view is `copy_` from a 0-dim CPU
tensor, a scalar stored to a slice is `fill_`), while Python sees `device == cuda:0`. Pinned memory is known by its storage,
as CUDA knows it by its address, so every view of a pinned buffer is pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import getattr_static
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
TYPE_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
}


class SimTensor(torch.Tensor):
    """A CPU tensor that says it is on `cuda:0`. Made by tagging (`tag`), never constructed."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def as_subclass(self, cls: type) -> Any:
        """PyTorch asks no mode about this one."""
        return torch.Tensor.as_subclass(self, SimTensor if cls is torch.Tensor else sim_subclass(cls))

    def __copy__(self) -> torch.Tensor:
        """`copy.copy` shares the memory."""
        return self.detach().requires_grad_(self.requires_grad)

    def record_stream(self, stream: Any) -> None:
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickling reads the values, as `.cpu()` does; what comes back out of a pickle is a host tensor.
        return torch.Tensor.cpu(self).__reduce_ex__(protocol)


class SimParameter(SimTensor, torch.nn.Parameter):
    """`nn.Parameter` on the simulated device."""


_subclasses: dict[type, type] = {}


def sim_subclass(kind: type) -> type:
    """The user's tensor subclass for the device."""
    if issubclass(kind, SimTensor):
        return kind
    if kind not in _subclasses:
        # With the user's own `__torch_function__`, or PyTorch's: `SimTensor` has it switched off.
        members = {"__module__": kind.__module__, "__torch_function__": getattr_static(kind, "__torch_function__")}
        _subclasses[kind] = type(kind.__name__, (kind, SimTensor), members)
    return _subclasses[kind]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes as the CPU tensor that they are."""
    return torch.Tensor.as_subclass(tensor, torch.Tensor)


def is_sim(value: object) -> bool:
    return isinstance(value, SimTensor)


def tag(tensor: torch.Tensor) -> torch.Tensor:
    """Marks `tensor` (and nothing that shares its memory) as being on the device; returns it."""
    if type(tensor) is torch.Tensor:
        tensor.__class__ = SimTensor
    elif type(tensor) is torch.nn.Parameter:
        tensor.__class__ = SimParameter
    return tensor


def tag_all(result: Any) -> Any:
    """Tags every tensor of an op's result: a tensor, or a list or tuple of tensors."""
    if type(result) is torch.Tensor:
        result.__class__ = SimTensor
    elif isinstance(result, (list, tuple)):
        for item in result:
            if type(item) is torch.Tensor:
                item.__class__ = SimTensor
    return result


def storage_id(tensor: torch.Tensor) -> int:
    """The address of the storage object: the same for every view of one allocation."""
    return int(tensor.untyped_storage()._cdata)


def type_name(tensor: torch.Tensor) -> str:
    """What `Tensor.type()` prints for a CUDA tensor."""
    return f"torch.cuda.{TYPE_NAMES.get(tensor.dtype, 'Float')}Tensor"


class PinnedMemory:
    """Which host storages are page-locked. A weak reference a storage, so a dead one never lends its address's status."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._sweep_at = 1024

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = StorageWeakRef(storage)
        if len(self._storages) > self._sweep_at:
            self._storages = {key: ref for key, ref in self._storages.items() if not ref.expired()}
            self._sweep_at = max(1024, 2 * len(self._storages))
        return tensor

    def __contains__(self, tensor: torch.Tensor) -> bool:
        ref = self._storages.get(storage_id(tensor))
        return ref is not None and not ref.expired()


def replaced(value: Any, new: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with `new(tensor)` in the place of every tensor in it, in lists, dictionaries and `partial` too."""
    if isinstance(value, torch.Tensor):
        return new(value)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(item, new) for item in value)
    if isinstance(value, dict):
        return {name: replaced(item, new) for name, item in value.items()}
    if isinstance(value, partial):
        return partial(value.func, *replaced(value.args, new), **replaced(value.keywords, new))
    return value
