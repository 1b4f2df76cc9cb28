"""The Python surface: what a tensor says of itself."""

from __future__ import annotations

from typing import Any

import torch

from capfuzz.devices.sim.moving import move
from capfuzz.devices.sim.rules.synchronising import read_on_host
from capfuzz.devices.sim.runtime import Runtime
from capfuzz.devices.sim.surface import Func, surface
from capfuzz.devices.sim.tensor import TYPE_NAMES, is_sim, tag, type_name


@surface(torch.Tensor.data_ptr)
def _data_ptr(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Who has asked for an address can tell when it is handed out again."""
    if rt.capturing is not None and is_sim(args[0]):
        rt.capturing.address_asked(args[0])
    return int(func(*args, **kwargs))


@surface(torch.Tensor.get_device)
def _get_device(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return 0 if is_sim(args[0]) else -1


@surface(torch.Tensor.type)
def _type(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        return type_name(args[0]) if is_sim(args[0]) else func(*args, **kwargs)
    if isinstance(wanted, torch.dtype):
        return move(rt, args[0], is_sim(args[0]), wanted, False)
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    dtypes = {f"{prefix}.{kind}Tensor": dtype for dtype, kind in TYPE_NAMES.items() for prefix in ("torch", "torch.cuda")}
    if name not in dtypes:
        raise ValueError(f"invalid type: '{name}'")
    return move(rt, args[0], name.startswith("torch.cuda."), dtypes[name], False)


@surface(torch.Tensor.__repr__)
def _repr(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Printing reads the values one by one, with every mode disabled: what it reads is judged here."""
    if is_sim(args[0]) and args[0].numel():
        read_on_host(rt)
    text: str = func(*args, **kwargs)
    if is_sim(args[0]):
        return text.replace(f"{type(args[0]).__name__}(", "tensor(", 1)
    return text


@surface(torch.Tensor.__format__)
def _format(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if is_sim(args[0]) and args[0].dim() == 0:
        return format(args[0].item(), args[1])
    return str(func(*args, **kwargs))


@surface(torch.Tensor.data.__set__)  # type: ignore[attr-defined]
def _set_data(rt: Runtime, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if is_sim(args[0]):
        rt.reshaped_in_place(args[0])
    func(*args, **kwargs)
    if is_sim(args[1]):
        tag(args[0])
