"""Collecting the op trace of one run: what `capfuzz` needs to blame a divergence on a line."""

from __future__ import annotations

from types import CodeType
from typing import Any

import numpy as np
import torch

from capfuzz.devices.trace import Location, OpRecord, caller, here


def host_values(tensor: torch.Tensor) -> np.ndarray:
    """A host copy of a tensor's values, bit for bit. Call it with no mode active.

    dtypes that NumPy lacks (bfloat16, the float8 family) come back as unsigned integers of their width.
    """
    data = tensor.detach()
    if data.__class__ is not torch.Tensor:
        data = torch.Tensor.as_subclass(data, torch.Tensor)
    if data.is_cuda:
        data = data.cpu()
    try:
        return np.array(data.resolve_conj().numpy())
    except TypeError:
        width = {1: torch.uint8, 2: torch.int16}[data.element_size()]
        return np.array(data.contiguous().view(width).numpy())


class Tracer:
    """A list of op records; with `values`, every record keeps what the op wrote; with `within`, where in that code it was."""

    def __init__(self, values: bool = False, within: CodeType | None = None) -> None:
        self.records: list[OpRecord] = []
        self.values = values
        self.within = within

    def add(
        self,
        op: str,
        kind: str,
        written: Any,
        location: Location | None = None,
        baked: bool = False,
    ) -> None:
        tensors = [written] if isinstance(written, torch.Tensor) else [t for t in written if isinstance(t, torch.Tensor)]
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
            self.records.append(
                OpRecord(
                    op,
                    here() if location is None else location,
                    kind,
                    tuple(t.untyped_storage()._cdata for t in tensors),
                    [host_values(t) for t in tensors] if self.values and kind not in ("alloc", "view") else [],
                    baked,
                    None if self.within is None else caller(self.within, 2),
                )
            )
