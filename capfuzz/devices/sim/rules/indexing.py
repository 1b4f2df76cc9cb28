"""Indexing with tensors (`aten/src/ATen/native/TensorAdvancedIndexing.cpp`).

A host index for a device tensor is copied over, pageable: refused during capture. A boolean mask becomes indices by `nonzero`,
for which the host waits. A host mask becomes pinned indices, copied without blocking, and so is frozen into the graph.
`index_put_` of one value under a mask is a masked fill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices.sim.kernels import Args, Kwargs, run_host
from capfuzz.devices.sim.ops import Op, lookup, rule
from capfuzz.devices.sim.rules.copies import copy_to
from capfuzz.devices.sim.rules.scalars import value_read_on_host
from capfuzz.devices.sim.rules.synchronising import read_on_host
from capfuzz.devices.sim.tensor import is_sim, plain

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime

_MASKS = (torch.bool, torch.uint8)


@rule("aten::index", "aten::_unsafe_index")
def index(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    if not is_sim(args[0]):
        return _host_indexed(rt, op, args, kwargs)
    return rt.launch(op, (args[0], _device_indices(rt, args[1]), *args[2:]), kwargs)


@rule("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put")
def index_put(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    target, indices, value = args[0], args[1], args[2]
    if not is_sim(target):
        return _host_indexed(rt, op, args, kwargs)
    accumulate = bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
    mask = None if accumulate or value.numel() != 1 else _as_mask(target, indices)
    if mask is not None:
        in_place = op.func._schema.name.endswith("_")
        fill = torch.ops.aten.masked_fill_.Tensor if in_place else torch.ops.aten.masked_fill.Tensor
        return value_read_on_host(rt, lookup(fill), (target, mask, value.reshape(()) if value.dim() else value), {})
    if not is_sim(value):
        if value.dim() or value.numel() != 1:
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
        value = copy_to(rt, value, True, None, False)
    return rt.launch(op, (target, _device_indices(rt, indices), value, *args[3:]), kwargs)


def _host_indexed(rt: Runtime, op: Op, args: Args, kwargs: Kwargs) -> Any:
    if any(is_sim(i) for i in args[1] if i is not None):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    return run_host(rt, op, args, kwargs)


def _device_indices(rt: Runtime, indices: Any) -> list[torch.Tensor | None]:
    """The indices as the kernel takes them: on the device, no masks left for it to expand."""
    prepared: list[torch.Tensor | None] = []
    for item in indices:
        if item is None:
            prepared.append(None)
        elif is_sim(item):
            if item.dtype in _MASKS:
                read_on_host(rt)
            prepared.append(item)
        elif item.dtype in _MASKS:
            positions = rt.pin(item.nonzero().contiguous())
            prepared.extend(copy_to(rt, column, True, None, True) for column in _pinned_columns(rt, positions))
        else:
            prepared.append(copy_to(rt, item, True, None, False))
    return prepared


def _pinned_columns(rt: Runtime, positions: torch.Tensor) -> list[torch.Tensor]:
    return [rt.pin(positions[:, d].contiguous()) for d in range(positions.shape[1])]


def _as_mask(target: torch.Tensor, indices: Any) -> torch.Tensor | None:
    """The mask that `index_put_` of one value fills under, or None (`canDispatchToMaskedFill`).

    All tensors among the indices must be one boolean mask on the target's device; leading and trailing Nones are whole dims.
    """
    masks = [i for i in indices if i is not None]
    if len(masks) != 1 or masks[0].dtype not in _MASKS or not is_sim(masks[0]):
        return None
    mask: torch.Tensor = masks[0]
    leading = next(n for n, i in enumerate(indices) if i is not None)
    trailing = target.dim() - leading - mask.dim()
    if trailing < 0 or mask.shape != target.shape[leading : leading + mask.dim()]:
        return None
    view = plain(mask)
    view = view.reshape((1,) * leading + tuple(mask.shape) + (1,) * trailing)
    from capfuzz.devices.sim.tensor import tag

    return tag(view)
