"""CPU scalars and 0-dim CPU tensors as operands of device ops."""

from __future__ import annotations

import numpy as np
import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# A 0-dim CPU tensor beside a device tensor. Element 3 of `lens` is 5 in A and 1 in B.


@idiom
def add_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x + torch.tensor(3)]


@idiom
def add_cpu0dim_lens(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.lens_cpu[0]]


@idiom
def sub_cpu0dim_left(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu[3] - s.x]


@idiom
def mul_cpu0dim_inplace(s: Buffers) -> list[torch.Tensor]:
    s.x.mul_(s.lens_cpu[3])
    return [s.x]


@idiom
def add_cpu0dim_out(s: Buffers) -> list[torch.Tensor]:
    torch.add(s.x, s.lens_cpu[3], out=s.out[:6])
    return [s.out]


@idiom
def add_pinned0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.pinned[3]]


@idiom
def add_cpu0dim_float_to_int(s: Buffers) -> list[torch.Tensor]:
    return [s.x + torch.tensor(1.5)]


@idiom
def div_cpu0dim_double(s: Buffers) -> list[torch.Tensor]:
    return [s.f / torch.tensor(3.0, dtype=torch.float64)]


@idiom
def floor_divide_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x // torch.tensor(2)]


@idiom
def remainder_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.remainder(s.x, torch.tensor(3))]


@idiom
def fmod_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.fmod(s.f, torch.tensor(0.75))]


@idiom
def pow_cpu0dim_exponent(s: Buffers) -> list[torch.Tensor]:
    return [torch.pow(s.x, s.lens_cpu[3])]


@idiom
def pow_cpu0dim_base(s: Buffers) -> list[torch.Tensor]:
    return [torch.pow(torch.tensor(2), s.lens)]


@idiom
def maximum_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.maximum(s.x, s.lens_cpu[3])]


@idiom
def fmin_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.fmin(s.f, torch.tensor(0.25))]


@idiom
def atan2_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    """TensorIterator lets the scalar in, the kernel has no form for it."""
    return [torch.atan2(s.f, torch.tensor(2.0))]


@idiom
def copysign_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.copysign(s.f, torch.tensor(-1.0))]


@idiom
def hypot_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.hypot(s.f, torch.tensor(2.0))]


@idiom
def xlogy_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.xlogy(s.f, torch.tensor(2.0))]


@idiom
def lerp_cpu0dim_weight(s: Buffers) -> list[torch.Tensor]:
    return [torch.lerp(s.f, -s.f, s.lens_cpu[3] * 0.125)]


@idiom
def lerp_cpu0dim_end(s: Buffers) -> list[torch.Tensor]:
    return [torch.lerp(s.f, torch.tensor(1.0), 0.25)]


@idiom
def addcmul_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.addcmul(s.f, s.f, torch.tensor(2.0))]


@idiom
def addcmul_cpu0dim_self(s: Buffers) -> list[torch.Tensor]:
    return [torch.addcmul(torch.tensor(2.0), s.f, s.f)]


@idiom
def addcdiv_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.addcdiv(s.f, s.f, torch.tensor(2.0))]


@idiom
def lt_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x < s.lens_cpu[3]]


@idiom
def eq_cpu0dim_left(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu[3] == s.lens]


@idiom
def bitwise_and_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x & torch.tensor(3)]


@idiom
def lshift_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [s.x << torch.tensor(1)]


@idiom
def logical_or_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.logical_or(s.mask, torch.tensor(False))]


@idiom
def clamp_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.clamp(s.x, min=torch.tensor(3, dtype=torch.int32))]


@idiom
def clamp_max_cpu0dim_inplace(s: Buffers) -> list[torch.Tensor]:
    s.x.clamp_max_(torch.tensor(3, dtype=torch.int32))
    return [s.x]


@idiom
def where_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.where(s.mask, s.x, s.lens_cpu[3])]


@idiom
def where_cpu0dim_condition(s: Buffers) -> list[torch.Tensor]:
    return [torch.where(torch.tensor(True), s.x, s.lens)]


@idiom
def where_scalar(s: Buffers) -> list[torch.Tensor]:
    return [torch.where(s.mask, s.x, 0)]


@idiom
def mse_loss_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return [torch.nn.functional.mse_loss(s.f[0, 0], torch.tensor(1.0))]


@idiom
def foreach_mul_cpu0dim(s: Buffers) -> list[torch.Tensor]:
    return list(torch._foreach_mul([s.f, s.f[0]], torch.tensor(2.0)))


# Ops that read their scalar with `item()`


@idiom
def masked_fill_one_element(s: Buffers) -> list[torch.Tensor]:
    return [s.x.masked_fill(s.mask, s.lens_cpu[3:4])]


@idiom
def add_alpha_int(s: Buffers) -> list[torch.Tensor]:
    return [torch.add(s.x, s.lens, alpha=2)]


@idiom
def add_alpha_cpu0(s: Buffers) -> list[torch.Tensor]:
    return [torch.add(s.x, s.lens, alpha=s.lens_cpu[3])]  # type: ignore[call-overload]


@idiom
def add_alpha_dev0(s: Buffers) -> list[torch.Tensor]:
    return [torch.add(s.x, s.lens, alpha=s.n)]  # type: ignore[call-overload]


@idiom
def clamp_scalar_dev0(s: Buffers) -> list[torch.Tensor]:
    return [s.x.clamp(0, s.n)]  # type: ignore[call-overload]


# 0-dim device tensors as operands


@idiom
def dev0_operand(s: Buffers) -> list[torch.Tensor]:
    return [s.x * s.n]


@idiom
def dev0_clamp_bound(s: Buffers) -> list[torch.Tensor]:
    return [torch.clamp(s.x, max=s.n)]


@idiom
def dev0_with_cpu0(s: Buffers) -> list[torch.Tensor]:
    return [s.n + s.lens_cpu[3]]


@idiom
def dev0_with_cpu_vector(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_cpu + s.n]


@idiom
def dev0_into_cpu0(s: Buffers) -> list[torch.Tensor]:
    total = torch.tensor(1, dtype=torch.int32)
    total.add_(s.n)
    return [s.x + total]


# Scalars that the host takes from its own memory


@idiom
def one_element_cpu(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.lens_cpu[3:4]]


@idiom
def np_scalar(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.lens_np[3]]


@idiom
def np_scalar_left(s: Buffers) -> list[torch.Tensor]:
    return [s.lens_np[3] * s.x]


@idiom
def np_float64_scalar(s: Buffers) -> list[torch.Tensor]:
    return [s.f * np.float64(0.5)]


@idiom
def np_0dim_array(s: Buffers) -> list[torch.Tensor]:
    return [s.x + np.array(3)]  # type: ignore[list-item]


@idiom
def int_of_cpu_max(s: Buffers) -> list[torch.Tensor]:
    longest = int(s.lens_cpu.max())
    return [s.x.clamp(max=longest)]


@idiom
def np_sum_of_lens(s: Buffers) -> list[torch.Tensor]:
    """The running sum of the first four: 10 in A, 9 in B."""
    return [s.x + int(np.cumsum(s.lens_np)[3])]


@idiom
def int_overflow_scalar(s: Buffers) -> list[torch.Tensor]:
    return [s.x + 2**40]
