"""Computing: elementwise ops, matrices, the layers of a model, gradients and updates."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom

# Elementwise


@idiom
def addcmul(s: Buffers) -> list[torch.Tensor]:
    return [torch.addcmul(s.f, s.f, s.f, value=0.5)]


@idiom
def inplace_add_float(s: Buffers) -> list[torch.Tensor]:
    s.x += 1.5
    return [s.x]


@idiom
def div_floor(s: Buffers) -> list[torch.Tensor]:
    """Both sets of lengths have a zero."""
    return [s.x // s.lens]


@idiom
def div_mode(s: Buffers) -> list[torch.Tensor]:
    return [torch.div(s.x, s.lens, rounding_mode="floor")]


@idiom
def div_floor_scalar(s: Buffers) -> list[torch.Tensor]:
    """Pages that so many tokens need."""
    return [(s.lens + 3) // 4]


@idiom
def div_trunc_negative(s: Buffers) -> list[torch.Tensor]:
    return [torch.div(s.x - 5, 2, rounding_mode="trunc"), torch.div(s.x - 5, 2, rounding_mode="floor")]


@idiom
def div_inplace_int(s: Buffers) -> list[torch.Tensor]:
    s.x /= 2
    return [s.x]


@idiom
def div_floor_by_zero_scalar(s: Buffers) -> list[torch.Tensor]:
    return [s.x // 0]


@idiom
def true_div_by_zero(s: Buffers) -> list[torch.Tensor]:
    return [s.x / s.lens]


@idiom
def remainder_by_zero(s: Buffers) -> list[torch.Tensor]:
    return [s.x % s.lens]


@idiom
def remainder_negative(s: Buffers) -> list[torch.Tensor]:
    return [(s.x - 5) % 3]


@idiom
def pow_scalar(s: Buffers) -> list[torch.Tensor]:
    return [2**s.lens]


@idiom
def pow_negative_of_int(s: Buffers) -> list[torch.Tensor]:
    return [(s.lens + 1) ** -1]


@idiom
def bitwise_and_shifts(s: Buffers) -> list[torch.Tensor]:
    return [((s.x << 2) >> 1) & 5 | ~s.lens ^ 3]


@idiom
def clamp_int(s: Buffers) -> list[torch.Tensor]:
    return [s.x.clamp(min=3)]


@idiom
def clamp_tensors(s: Buffers) -> list[torch.Tensor]:
    return [torch.clamp(s.x, min=s.lens, max=s.lens + 3)]


@idiom
def sqrt_of_negative(s: Buffers) -> list[torch.Tensor]:
    return [s.f.sqrt()]


@idiom
def nan_to_num(s: Buffers) -> list[torch.Tensor]:
    return [torch.nan_to_num(s.f.log(), nan=-1.0, neginf=-2.0)]


@idiom
def dtype_promotion(s: Buffers) -> list[torch.Tensor]:
    return [s.x + s.f[:, 0], s.mask + s.x, s.x + s.idx, s.x.half() + s.f[:, 0]]


@idiom
def int32_overflow(s: Buffers) -> list[torch.Tensor]:
    return [(s.x + 1) * 1_000_000_007]


@idiom
def float_to_int(s: Buffers) -> list[torch.Tensor]:
    return [(s.f * 100).to(torch.int32), s.f.round().to(torch.int8)]


@idiom
def isclose(s: Buffers) -> list[torch.Tensor]:
    return [torch.isclose(s.f, s.f + 1e-9)]


@idiom
def isin(s: Buffers) -> list[torch.Tensor]:
    return [torch.isin(s.x, s.lens)]


@idiom
def isin_list(s: Buffers) -> list[torch.Tensor]:
    return [torch.isin(s.x, torch.tensor([1, 2], device="cpu").to(s.dev))]


@idiom
def isin_many(s: Buffers) -> list[torch.Tensor]:
    """So many test elements that the op sorts both."""
    return [torch.isin(s.x, s.out.repeat(8))]


@idiom
def isin_scalar(s: Buffers) -> list[torch.Tensor]:
    return [torch.isin(s.x, 3)]


@idiom
def foreach_add_scalar(s: Buffers) -> list[torch.Tensor]:
    torch._foreach_add_([s.f, s.f[0]], 1.0)
    return [s.f]


@idiom
def foreach_mul_lists(s: Buffers) -> list[torch.Tensor]:
    return list(torch._foreach_mul([s.x, s.lens], [s.lens, s.x]))


@idiom
def foreach_mul_dev0dim(s: Buffers) -> list[torch.Tensor]:
    return list(torch._foreach_mul([s.f, s.f[0]], s.f[0, 0]))


@idiom
def foreach_add_scalar_list(s: Buffers) -> list[torch.Tensor]:
    return list(torch._foreach_add([s.x, s.lens], [1, 2]))


@idiom
def foreach_norm(s: Buffers) -> list[torch.Tensor]:
    return list(torch._foreach_norm([s.f, s.f[0]]))


# Matrices


@idiom
def einsum(s: Buffers) -> list[torch.Tensor]:
    return [torch.einsum("ij,kj->ik", s.f, s.f)]


@idiom
def mm_out(s: Buffers) -> list[torch.Tensor]:
    y = torch.empty(6, 6, device=s.dev)
    torch.mm(s.f, s.f.t(), out=y)
    return [y]


@idiom
def matmul_int(s: Buffers) -> list[torch.Tensor]:
    return [s.x.view(1, 6) @ s.lens.view(6, 1)]


@idiom
def matmul_half(s: Buffers) -> list[torch.Tensor]:
    return [s.f.half() @ s.f.half().t()]


@idiom
def matmul_mixed_dtypes(s: Buffers) -> list[torch.Tensor]:
    return [s.f.half() @ s.f.t()]


@idiom
def linear_bf16(s: Buffers) -> list[torch.Tensor]:
    h = s.f.to(torch.bfloat16)
    return [F.linear(h, h, h[:, 0]).float()]


@idiom
def addmm_inplace(s: Buffers) -> list[torch.Tensor]:
    y = s.f[:, :6].clone()
    y.addmm_(s.f, s.f.t(), beta=0.5, alpha=2.0)
    return [y]


@idiom
def bmm_baddbmm(s: Buffers) -> list[torch.Tensor]:
    a = s.f.view(2, 3, 8)
    scores = torch.bmm(a, a.transpose(1, 2))
    return [torch.baddbmm(scores, scores, scores)]


@idiom
def dot(s: Buffers) -> list[torch.Tensor]:
    return [torch.dot(s.f[0], s.f[1])]


@idiom
def matmul_empty(s: Buffers) -> list[torch.Tensor]:
    return [s.f[:0] @ s.f.t(), s.f[:, :0] @ s.f.t()[:0]]


@idiom
def linalg_inv(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.inv(s.f[:6, :6] + 10 * torch.eye(6, device=s.dev))]


@idiom
def linalg_inv_ex(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.inv_ex(s.f[:6, :6] + 10 * torch.eye(6, device=s.dev))[0]]


@idiom
def linalg_det(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.det(s.f[:6, :6])]


@idiom
def linalg_solve(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.solve(s.f[:6, :6] + 10 * torch.eye(6, device=s.dev), s.f)]


@idiom
def linalg_solve_triangular(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.solve_triangular(torch.triu(s.f[:, :6]) + 10 * torch.eye(6, device=s.dev), s.f, upper=True)]


@idiom
def linalg_cholesky(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.cholesky(s.f @ s.f.t() + torch.eye(6, device=s.dev))]


@idiom
def linalg_qr(s: Buffers) -> list[torch.Tensor]:
    return list(torch.linalg.qr(s.f))


@idiom
def linalg_svdvals(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.svdvals(s.f)]


@idiom
def linalg_eigvalsh(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.eigvalsh(s.f @ s.f.t())]


@idiom
def linalg_matrix_exp(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.matrix_exp(s.f[:, :6])]


@idiom
def matrix_power(s: Buffers) -> list[torch.Tensor]:
    return [torch.linalg.matrix_power(s.f[:, :6], 3)]


@idiom
def rfft(s: Buffers) -> list[torch.Tensor]:
    return [torch.fft.irfft(torch.fft.rfft(s.f) * 2)]


@idiom
def cdist(s: Buffers) -> list[torch.Tensor]:
    return [torch.cdist(s.f, s.f)]


@idiom
def conv1d(s: Buffers) -> list[torch.Tensor]:
    return [F.conv1d(s.f[:, None], s.f[:2, None, :3])]


@idiom
def causal_conv_state(s: Buffers) -> list[torch.Tensor]:
    """A state-space model's step: shift the state, put the new column in, weigh."""
    s.f.copy_(torch.roll(s.f, -1, dims=1))
    s.f[:, -1] = s.lens.float()
    return [(s.f * s.f[0]).sum(-1)]


# The layers of a model


@idiom
def softmax_dtype(s: Buffers) -> list[torch.Tensor]:
    return [torch.softmax(s.f.half(), -1, dtype=torch.float32)]


@idiom
def log_softmax_masked(s: Buffers) -> list[torch.Tensor]:
    allowed = torch.arange(8, device=s.dev) <= s.lens[:, None]
    return [F.log_softmax(s.f.masked_fill(~allowed, float("-inf")), -1)]


@idiom
def layer_norm(s: Buffers) -> list[torch.Tensor]:
    return [F.layer_norm(s.f, (8,), s.f[0], s.f[1])]


@idiom
def rms_norm(s: Buffers) -> list[torch.Tensor]:
    return [s.f * torch.rsqrt(s.f.pow(2).mean(-1, keepdim=True) + 1e-6), F.rms_norm(s.f, (8,), eps=1e-6)]


@idiom
def batch_norm_training(s: Buffers) -> list[torch.Tensor]:
    """The running statistics are updated in place."""
    mean, var = torch.zeros(8, device=s.dev), torch.ones(8, device=s.dev)
    return [F.batch_norm(s.f, mean, var, training=True), mean, var]


@idiom
def silu_and_mul(s: Buffers) -> list[torch.Tensor]:
    gate, up = s.f.chunk(2, dim=-1)
    return [F.silu(gate) * up, F.gelu(up, approximate="tanh")]


@idiom
def scaled_dot_product_attention(s: Buffers) -> list[torch.Tensor]:
    q = s.f.view(1, 1, 6, 8)
    return [F.scaled_dot_product_attention(q, q, q, is_causal=True)]


@idiom
def attention_masked_by_length(s: Buffers) -> list[torch.Tensor]:
    scores = s.f @ s.f.t()
    visible = torch.arange(6, device=s.dev) < s.n
    return [torch.softmax(scores.masked_fill(~visible, float("-inf")), -1) @ s.f]


@idiom
def rotary_embedding(s: Buffers) -> list[torch.Tensor]:
    frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2, device=s.dev).float() / 8))
    angles = torch.outer(s.x.float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    left, right = s.f.chunk(2, dim=-1)
    return [torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)]


@idiom
def rotary_complex(s: Buffers) -> list[torch.Tensor]:
    angles = torch.outer(s.x.float(), torch.linspace(1, 0.1, 4, device=s.dev))
    rotated = torch.view_as_complex(s.f.view(6, 4, 2)) * torch.polar(torch.ones_like(angles), angles)
    return [torch.view_as_real(rotated).flatten(1)]


@idiom
def moe_gating(s: Buffers) -> list[torch.Tensor]:
    weights, experts = torch.topk(torch.softmax(s.f, -1), 2, dim=-1)
    return [weights / weights.sum(-1, keepdim=True), experts]


@idiom
def quantise_fp8(s: Buffers) -> list[torch.Tensor]:
    scale = s.f.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return [(s.f / scale).to(torch.float8_e4m3fn).float() * scale, scale]


@idiom
def quantise_int8(s: Buffers) -> list[torch.Tensor]:
    scale = s.f.abs().amax() / 127
    return [(s.f / scale).round().clamp(-128, 127).to(torch.int8), scale]


@idiom
def quantise_per_tensor(s: Buffers) -> list[torch.Tensor]:
    return [torch.fake_quantize_per_tensor_affine(s.f, 0.1, 0, -128, 127)]


@idiom
def interpolate(s: Buffers) -> list[torch.Tensor]:
    return [F.interpolate(s.f.view(1, 1, 6, 8), scale_factor=2.0, mode="bilinear", align_corners=False)]


@idiom
def lstm_cell(s: Buffers) -> list[torch.Tensor]:
    weights = s.f.repeat(2, 1)[:8]
    return list(torch.lstm_cell(s.f[:, :2], [s.f[:, 2:4], s.f[:, 4:6]], weights[:, :2], weights[:, 2:4]))


@idiom
def cross_entropy(s: Buffers) -> list[torch.Tensor]:
    return [F.cross_entropy(s.f, s.idx), F.cross_entropy(s.f, s.idx, ignore_index=0, reduction="sum")]


@idiom
def ctc_loss(s: Buffers) -> list[torch.Tensor]:
    """Lengths on the device: the op takes them on the host."""
    log_probs = F.log_softmax(s.f.view(6, 1, 8), -1)
    lengths = torch.full((1,), 6, device=s.dev)
    return [F.ctc_loss(log_probs, s.idx[None, :2] % 3 + 1, lengths, lengths // 3)]


# Gradients and updates


@idiom
def backward_in_body(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    (w.sin() * w).sum().backward()
    assert w.grad is not None
    return [w.grad]


@idiom
def autograd_grad(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    return list(torch.autograd.grad((w @ w.t()).logsumexp(-1).sum(), w))


@idiom
def grad_of_grad(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(w.pow(3).sum(), w, create_graph=True)
    return list(torch.autograd.grad(first.sum(), w))


@idiom
def backward_with_hook(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    w.register_hook(lambda grad: grad * 2)
    w.square().sum().backward()
    assert w.grad is not None
    return [w.grad]


@idiom
def embedding_backward(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    F.embedding(s.idx, w).square().sum().backward()
    assert w.grad is not None
    return [w.grad]


@idiom
def cross_entropy_backward(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    F.cross_entropy(w, s.idx).backward()
    assert w.grad is not None
    return [w.grad]


@idiom
def sgd_step_by_hand(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().requires_grad_()
    (grad,) = torch.autograd.grad((w * w).mean(), w)
    with torch.no_grad():
        w -= 0.1 * grad
    return [s.f]


@idiom
def sgd_optimizer(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    w.square().sum().backward()
    optimizer.step()
    return [w.detach()]


@idiom
def adam_not_capturable(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.1)
    w.square().sum().backward()
    optimizer.step()
    return [w.detach()]


@idiom
def adam_capturable(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.1, capturable=True)
    w.square().sum().backward()
    optimizer.step()
    return [w.detach()]


@idiom
def clip_grad_norm(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    w.square().sum().backward()
    norm = torch.nn.utils.clip_grad_norm_([w], 1.0)
    assert w.grad is not None
    return [w.grad, norm]


@idiom
def clip_grad_norm_checked(s: Buffers) -> list[torch.Tensor]:
    w = s.f.detach().clone().requires_grad_()
    w.square().sum().backward()
    return [torch.nn.utils.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)]


@idiom
def moving_average(s: Buffers) -> list[torch.Tensor]:
    s.f[0].mul_(0.9).add_(s.f[1], alpha=0.1)
    s.f[2].lerp_(s.f[3], 0.25)
    return [s.f]
