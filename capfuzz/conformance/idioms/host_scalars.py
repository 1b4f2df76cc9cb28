"""CPU scalars and 0-dim CPU tensors as operands of device ops."""

from __future__ import annotations

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom


@idiom
def add_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x + torch.tensor(3)]


@idiom
def add_cpu0dim_lens(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.lens_cpu[0]]
