"""Who holds a graph's memory: what its nodes hold alone, its owner has dropped.

Nodes keep the tensors that they need, so nothing is freed under the simulated device's feet. What the hardware would do is
told from counts instead: a storage counts the tensors that lie in it, a tensor the Python references to it. Memory that only
nodes hold is free on hardware: outside memory is then dangling, a graph's own is handed out again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices.sim.tensor import is_sim, storage_id, tag

if TYPE_CHECKING:
    from capfuzz.devices.sim.capture import Node

_BLOCK = 512  # bytes: the caching allocator rounds to it


def tensors_in(storage: int) -> int:
    """How many tensors lie in a storage."""
    return int(torch._C._storage_Use_Count(storage)) - _COUNTED_TOO


def _calibrate() -> int:
    tensor = torch.empty(1)
    return int(torch._C._storage_Use_Count(storage_id(tensor))) - 1


_COUNTED_TOO = _calibrate()  # the storage's own Python object, or the question itself


def _references(value: Any) -> Iterator[torch.Tensor]:
    """Every reference to a tensor that a node's step holds."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, partial):
        yield from _references(value.args)
        yield from _references(value.keywords)


def tensors_of(nodes: Iterable[Node]) -> Iterator[torch.Tensor]:
    """Every reference of the nodes, as often as they hold it."""
    for node in nodes:
        yield from _references(node.recipe)
        yield from node.written


class Holders:
    """What nodes (and the list of what a capture owns) hold of each storage."""

    def __init__(self, nodes: Iterable[Node], owned: Iterable[torch.Tensor]) -> None:
        self._references: dict[int, int] = {}
        self._tensors: dict[int, dict[int, torch.Tensor]] = {}
        for tensor in (*tensors_of(nodes), *owned):
            key = id(tensor)
            self._references[key] = self._references.get(key, 0) + 1
            self._tensors.setdefault(storage_id(tensor), {})[key] = tensor

    def alone(self, storage: int, extra: int = 0) -> bool:
        """Whether nobody else holds a tensor in this storage. `extra`: references that the caller has to each."""
        tensors = self._tensors[storage]
        if tensors_in(storage) > len(tensors):
            return False
        # Besides the nodes' own references there are the one in `tensors` and the argument of `getrefcount`.
        return all(sys.getrefcount(tensors[key]) <= self._references[key] + extra + 2 for key in tensors)


def dropped(nodes: list[Node], owned: list[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor of each storage in `owned` that only the nodes still hold."""
    by_storage = {storage_id(tensor): number for number, tensor in enumerate(owned)}
    holders = Holders(nodes, owned)
    return [owned[number] for storage, number in by_storage.items() if holders.alone(storage)]


def block_size(tensor: torch.Tensor) -> int:
    return -(-tensor.untyped_storage().nbytes() // _BLOCK) * _BLOCK


def move_into(tensor: torch.Tensor, blocks: list[torch.Tensor]) -> bool:
    """Lays a new tensor into the smallest free block that takes it, and uses that up. Call it with no mode active."""
    needed = block_size(tensor)
    fitting = [block for block in blocks if block_size(block) >= needed and _bytes(block) >= _bytes(tensor)]
    if not needed or not fitting:
        return False
    block = min(fitting, key=block_size)
    blocks[:] = [other for other in blocks if other is not block]
    tensor.set_(block.untyped_storage(), 0, tensor.shape, tensor.stride())
    return True


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


def addresses_of(nodes: Iterable[Node]) -> dict[int, int]:
    """Where the tensors lie that nodes hold: a kernel has their addresses, whatever becomes of the storages."""
    found: dict[int, int] = {}
    for node in nodes:
        values = [node.written, *(node.recipe[2:] if isinstance(node.recipe, tuple) else (node.recipe,))]
        for value in values:  # grows: a generator for each list would cost more than the rest of this
            if isinstance(value, torch.Tensor):
                found[id(value)] = value.data_ptr()
            elif isinstance(value, (list, tuple)):
                values += value
            elif isinstance(value, dict):
                values += value.values()
            elif isinstance(value, partial):
                values += (value.args, value.keywords)
    return found


class OutsideBuffer:
    """One piece of outside memory that a graph uses: how many aliases its nodes hold, and who used it first."""

    __slots__ = ("address", "alias", "aliases", "node", "storage", "what")

    def __init__(self, storage: int, alias: torch.Tensor, address: int, what: str, node: Node) -> None:
        self.storage = storage
        self.alias = alias
        self.address = address
        self.what = what
        self.node = node
        self.aliases = 0

    @property
    def has_moved(self) -> bool:
        """Whether its storage has other memory now: one that grows (`resize_`, an `out=` too small) frees what it had."""
        return self.alias.data_ptr() != self.address


def alias_outside(
    nodes: list[Node], inside: set[int], is_outside_host: Callable[[torch.Tensor], bool], addresses: dict[int, int]
) -> list[OutsideBuffer]:
    """Makes nodes hold aliases of outside memory, so that its owner's own tensors are all that keeps it.

    `inside` are the storages that graphs own, `addresses` is where the tensors lay that nodes hold. A host tensor matters only
    if `is_outside_host`: others are the nodes' own. A tensor that had no bytes owned no memory that could be freed.
    """
    buffers: dict[int, OutsideBuffer] = {}
    aliases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def aliased(node: Node, tensor: torch.Tensor) -> torch.Tensor:
        storage = storage_id(tensor)
        had_bytes = addresses[id(tensor)] or _bytes(tensor)
        if storage in inside or not had_bytes or not (is_sim(tensor) or is_outside_host(tensor)):
            return tensor
        if id(tensor) not in aliases:
            alias = torch.Tensor.detach(tensor)
            aliases[id(tensor)] = tensor, tag(alias) if is_sim(tensor) else alias
            if storage not in buffers:
                buffers[storage] = OutsideBuffer(storage, alias, addresses[id(tensor)], describe(tensor), node)
            buffers[storage].aliases += 1
        return aliases[id(tensor)][1]

    for node in nodes:
        node.replace(partial(aliased, node))
        node.ready()
    return list(buffers.values())


def describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
