"""What an op's schema says of it, the same on every device."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

# These return memory of their input without saying so in their schema.
_UNDECLARED_VIEWS = frozenset(
    ["_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift", "lift_fresh", "_reshape_alias"]
)


def reads_shape_alone(name: str) -> bool:
    """Whether an op takes no more from its first tensor than shape, dtype and device: ATen's `zeros_like`, `new_full`."""
    return name.endswith("_like") or name.startswith("new_")


class OpFacts:
    """The facts about one op overload."""

    __slots__ = ("func", "is_empty", "is_view", "mutated", "mutated_kw", "name", "reads_shape_alone")

    def __init__(self, func: OpOverload) -> None:
        schema = func._schema
        packet = schema.name.split("::")[1]
        self.func = func
        self.name = f"{packet}.{func._overloadname}" if func._overloadname != "default" else packet
        self.mutated = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
        self.mutated_kw = tuple(schema.arguments[i].name for i in self.mutated)
        aliased = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        self.is_view = aliased or torch.Tag.inplace_view in func.tags or packet in _UNDECLARED_VIEWS
        self.reads_shape_alone = reads_shape_alone(packet)
        self.is_empty = packet.startswith(("empty", "new_empty"))

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that a call writes in place."""
        found: list[torch.Tensor] = []
        for index, name in zip(self.mutated, self.mutated_kw, strict=True):
            value = args[index] if index < len(args) else kwargs.get(name)
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif isinstance(value, (list, tuple)):
                found.extend(v for v in value if isinstance(v, torch.Tensor))
        return found
