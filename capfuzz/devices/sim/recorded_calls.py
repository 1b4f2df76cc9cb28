"""Calls that a capture records whole, learnt by recording them op by op once.

What `shortcuts` is to eager calls. A call of a shape that was seen to read device tensors and to write nothing but new memory
needs no record of its ops: one node that makes the call again, and copies what it gives to where the capture's result lies,
replays the same. A call that only makes views leaves no node. A capture that is traced, or in which memory is handed out again,
records op by op; so does one that the user's own code begins, whose nodes a trace may want to see.
"""

from __future__ import annotations

from typing import Any

import torch

from capfuzz.devices.sim.capture import Capture, Node, RecordedCall
from capfuzz.devices.sim.memory import tensors_of
from capfuzz.devices.sim.ops import Op
from capfuzz.devices.sim.runtime import Runtime
from capfuzz.devices.sim.shortcuts import Key, can_teach, remember
from capfuzz.devices.sim.tensor import SimTensor, storage_id, tag_all
from capfuzz.devices.trace import here

_VIEWS = RecordedCall(lambda: None, "")  # for every call that leaves no node
_known: dict[Key, RecordedCall | None] = {}


def run(runtime: Runtime, capture: Capture, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes a call during a capture: records it whole if its shape is known to allow it, else op by op, and remembers which."""
    if capture.error is not None or capture.free_blocks or capture.addressed:
        return func(*args, **kwargs)
    if key not in _known:
        return _learn(runtime, capture, key, func, args, kwargs)
    known = _known[key]
    if known is None:
        return func(*args, **kwargs)
    try:
        with torch._C._DisableTorchDispatch():
            result = func(*args, **kwargs)
    except (IndexError, RuntimeError):  # op by op it is told whether the device asserts or the host refuses
        return func(*args, **kwargs)
    made = [result] if isinstance(result, torch.Tensor) else result
    if not isinstance(made, (list, tuple)):
        return result if known is _VIEWS else func(*args, **kwargs)  # it has done nothing yet that a node would do
    given = _storages(args)
    fresh = [tensor for tensor in made if isinstance(tensor, torch.Tensor) and storage_id(tensor) not in given]
    if not fresh:
        return tag_all(result)
    if known is _VIEWS or len(fresh) < len(made):
        return func(*args, **kwargs)  # it has written nothing, and can come again
    tag_all(result)
    runtime.stream.work += 1
    capture.owned += fresh
    capture.nodes.append(Node(known.name, "kernel", (runtime, known, args, kwargs), fresh, here(runtime.call[2])))
    return result


def _learn(runtime: Runtime, capture: Capture, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = len(capture.nodes)
    runtime.met_a_rule = False
    result = func(*args, **kwargs)
    if can_teach(args):
        remember(_known, key, None if runtime.met_a_rule else _as_one(func, args, capture.nodes[before:]))
    return result


def _as_one(func: Any, args: tuple[Any, ...], nodes: list[Node]) -> RecordedCall | None:
    """The nodes of a call as one, if they read all that it was given, the first one all at once, and write no argument."""
    if not nodes:
        return _VIEWS
    for node in nodes:
        op = node.recipe[1] if isinstance(node.recipe, tuple) else None
        if not isinstance(op, Op) or op.mutated:
            return None
    read = {storage_id(tensor) for tensor in tensors_of(nodes[:1])}
    return RecordedCall(func, nodes[0].op) if read.issuperset(_storages(args)) else None


def _storages(args: tuple[Any, ...]) -> list[int]:
    return [storage_id(value) for value in args if type(value) is SimTensor]
