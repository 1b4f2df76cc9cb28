"""What a kernel asserts on the device: values that it was not made for.

The CPU's kernels look at the values and raise: an index that lies outside, a class that there is none of, a probability above
one, a flag that is false. On the device the kernel asserts, which the host learns later as an error of the device; and a
capture, in which nothing runs, learns nothing (`tests/asserting_ops.py` has what an H200 did with each). What shapes and dtypes
alone forbid is refused by the host on both, and so is what the host has read before it launches (`rules/synchronising.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices.errors import CudaError
from capfuzz.devices.sim.tensor import plain, replaced, storage_id

if TYPE_CHECKING:
    from capfuzz.devices.sim.ops import Op

_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory")


def is_out_of_memory(error: Exception) -> bool:
    """Whether the CPU's allocator has said no."""
    return bool(_OUT_OF_MEMORY.search(str(error)))


def at_replay(error: Exception) -> Exception:
    """What the host learns of a CPU kernel's error in a replay: shapes are what they were, so the values are wrong."""
    # The types that PyTorch's own checks raise. A matrix without an inverse has one of its own, and so have our errors.
    if type(error) not in (IndexError, RuntimeError) or is_out_of_memory(error):
        return error
    return CudaError("cudaErrorAssert")


def at_launch(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Exception:
    """What the host learns of a CPU kernel's error in eager code."""
    told = at_replay(error)
    if told is not error:
        try:
            _result_for_other_values(op, args, kwargs)
        except Exception:
            return error
    return told


def unknown_result(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
    """What a capture has of an op that asserts: memory that nothing has written. Raises what the host refuses."""
    told = at_launch(op, args, kwargs, error)
    if not (isinstance(told, CudaError) and told.code == "cudaErrorAssert"):
        raise error
    if told is error:  # a check of the device's own: no values need be found that pass it
        result = replaced(_run_on(None, op, args, kwargs), lambda meta: torch.empty_like(meta, device="cpu"))
    else:
        result = _result_for_other_values(op, args, kwargs)
    if not op.mutated or result is None:
        return result
    written = op.written(args, kwargs)
    return written[0] if len(written) == 1 else tuple(written)


def _result_for_other_values(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the op gives for tensors of zeros, or else of ones.

    Raises what it says of those: it is of shapes or dtypes, then, that it complains.
    """
    try:
        return _run_on(0, op, args, kwargs)
    except Exception:
        return _run_on(1, op, args, kwargs)


def _run_on(value: int | None, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an op on tensors full of `value` (None: without values) that are laid out and overlap as its arguments do."""
    device = torch.device("meta" if value is None else "cpu")
    storages: dict[int, torch.UntypedStorage] = {}

    def other(tensor: torch.Tensor) -> torch.Tensor:
        key = storage_id(tensor)
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        if key not in storages:
            storages[key] = torch.UntypedStorage(tensor.untyped_storage().nbytes(), device=device)
            if value is not None:
                empty.set_(storages[key]).fill_(value)
        return empty.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())

    host = torch.default_generator
    state = host.get_state()
    try:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            others = [replaced(argument, lambda tensor: other(plain(tensor))) for argument in (args, kwargs)]
            drawn = {"generator": None} if op.takes_generator else {}
            return op.call(*others[0], **others[1], **drawn)
    finally:
        host.set_state(state)
