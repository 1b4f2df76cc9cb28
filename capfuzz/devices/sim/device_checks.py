"""What kernels of the device check, and the CPU's do not, or not before they have written.

A check runs with every call of its op on the device, in a replay too, and asserts as the device does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from capfuzz.devices.errors import CudaError
from capfuzz.devices.sim.tensor import is_sim, plain

Check = Callable[..., None]


def _repeats(repeats: torch.Tensor, *, output_size: int | None = None) -> None:
    """`compute_cuda_kernel` (`Repeat.cu`). The CPU's kernel has written past its end when it meets a negative number."""
    if output_size is not None and ((repeats < 0).any() or int(repeats.sum()) != output_size):
        raise CudaError("cudaErrorAssert")


def _group_ends(left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None, *rest: Any, **options: Any) -> None:
    """`prepare_grouped_gemm_data` (`GroupMMCommon.cuh`): ends of groups that never fall, within the dimension that they cut."""
    if offs is None:
        return
    if left.dim() == 2:
        size = left.shape[0] if right.dim() == 3 else left.shape[1]
    else:
        size = right.shape[1]
    ends = offs.long()
    if (torch.diff(ends, prepend=ends.new_zeros(1)) < 0).any() or (ends > size).any():
        raise CudaError("cudaErrorAssert")


CHECKS: dict[str, Check] = {
    "repeat_interleave.Tensor": _repeats,
    "_grouped_mm": _group_ends,
}
"""Op -> its check, which is given the op's arguments."""


def checked(call: Callable[..., Any], check: Check) -> Callable[..., Any]:
    """`call`, after its check where its arguments lie on the device."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_sim, args)):
            check(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
        return call(*args, **kwargs)

    return run


def _plain(value: Any) -> Any:
    return plain(value) if is_sim(value) else value
