"""Ops that judge the values they are given, and what an H200 (torch 2.11.0+cu130, 2026-12-04) does where those are wrong.

`tests/cuda/test_asserts.py` asks the GPU again; `tests/unit/test_sim_asserts.py` holds the simulated device to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Use(NamedTuple):
    """One op: values that it takes, values that it does not, and the outcomes with those."""

    call: Callable[[torch.Tensor], object]
    good: list[float]
    bad: list[float]
    eager: str
    """With the bad values: `ran`, `assert` (of the device) or `refused` (by the host)."""
    capture: str
    """With either values: `ran`, or the rule that it breaks."""
    replay: str
    """With the bad values: `ran`, `assert`, or `none` where nothing was captured."""


Cases = dict[str, tuple[Callable[[torch.Tensor], object], list[float], list[float]]]


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


def zeros() -> torch.Tensor:
    return torch.zeros(4, device="cuda")


def three() -> torch.Tensor:
    return torch.arange(3, device="cuda")


_ASSERTED: Cases = {
    "index": (lambda v: zeros()[v], [1, 3], [1, 9]),
    "index_select": (lambda v: zeros().index_select(0, v), [1, 3], [1, 9]),
    "gather": (lambda v: ones(4, 6).gather(1, v.view(2, 1)), [1, 3], [1, 9]),
    "take": (lambda v: zeros().take(v), [1, 3], [1, 9]),
    "embedding": (lambda v: F.embedding(v, ones(4, 6)), [1, 3], [1, 9]),
    "embedding_renorm": (lambda v: F.embedding(v, ones(4, 6), max_norm=1.0), [1, 3], [1, 9]),
    "embedding_bag": (lambda v: F.embedding_bag(v.view(2, 2), ones(4, 6)), [0, 1, 2, 3], [0, 1, 2, 99]),
    "scatter_": (lambda v: zeros().scatter_(0, v, ones(2)), [1, 3], [1, 9]),
    "scatter_reduce_": (lambda v: zeros().scatter_reduce_(0, v, ones(2), "sum"), [1, 3], [1, 9]),
    "index_put_": (lambda v: zeros().index_put_((v,), ones(2)), [1, 3], [1, 9]),
    "index_put_adding": (lambda v: zeros().index_put_((v,), ones(2), accumulate=True), [1, 3], [1, 9]),
    "index_fill_": (lambda v: zeros().index_fill_(0, v, 1), [1, 3], [1, 9]),
    "index_add_": (lambda v: zeros().index_add_(0, v, ones(2)), [1, 3], [1, 9]),
    "index_copy_": (lambda v: zeros().index_copy_(0, v, ones(2)), [1, 3], [1, 9]),
    "index_reduce_": (lambda v: zeros().index_reduce_(0, v, ones(2), "amax"), [1, 3], [1, 9]),
    "put_": (lambda v: zeros().put_(v, ones(2)), [1, 3], [1, 9]),
    "one_hot": (lambda v: F.one_hot(v, 4), [1, 3], [1, 9]),
    "masked_scatter_": (lambda v: zeros().masked_scatter_(v.bool(), ones(2)), [1, 1, 0, 0], [1, 1, 1, 0]),
    "max_unpool1d": (lambda v: F.max_unpool1d(ones(1, 1, 2), v.view(1, 1, 2), 2), [0, 2], [0, 99]),
    "max_unpool2d": (lambda v: F.max_unpool2d(ones(1, 1, 1, 2), v.view(1, 1, 1, 2), 2), [0, 2], [0, 99]),
    "nll_loss": (lambda v: F.nll_loss(ones(4, 6), v), [0, 1, 2, 3], [0, 1, 2, 99]),
    "nll_loss2d": (lambda v: F.nll_loss(ones(1, 4, 2, 2), v.view(1, 2, 2)), [0, 1, 2, 3], [0, 1, 2, 99]),
    "cross_entropy": (lambda v: F.cross_entropy(ones(4, 6), v), [0, 1, 2, 3], [0, 1, 2, -3]),
    "multi_margin_loss": (lambda v: F.multi_margin_loss(ones(4, 6), v), [0, 1, 2, 3], [0, 1, 2, 99]),
    "binary_cross_entropy": (lambda v: F.binary_cross_entropy(v.float(), ones(2)), [1, 0], [1, 3]),
    "binary_cross_entropy_target": (lambda v: F.binary_cross_entropy(ones(2), v.float()), [1, 0], [1, 3]),
    "multinomial": (lambda v: torch.multinomial(v.float(), 2, replacement=True), [1, 2, 3], [1, -2, 3]),
    "multinomial_of_nothing": (lambda v: torch.multinomial(v.float(), 2, replacement=True), [1, 2, 3], [0, 0, 0]),
    "multinomial_one": (lambda v: torch.multinomial(v.float(), 1), [1, 2, 3], [1, -2, 3]),
    "multinomial_two": (lambda v: torch.multinomial(v.float(), 2), [1, 2, 3], [1, -2, 3]),
    "bernoulli": (lambda v: torch.bernoulli(v.float()), [1, 0], [1, 2]),
    "bernoulli_": (lambda v: ones(2).bernoulli_(v.float()), [1, 0], [1, 2]),
    "poisson": (lambda v: torch.poisson(v.float()), [1, 0], [1, -2]),
    "repeat_interleave_negative": (lambda v: torch.repeat_interleave(three(), v, output_size=4), [1, 1, 2], [1, -1, 4]),
    "repeat_interleave_too_many": (lambda v: torch.repeat_interleave(three(), v, output_size=4), [1, 1, 2], [1, 1, 5]),
    "repeat_interleave_too_few": (lambda v: torch.repeat_interleave(three(), v, output_size=4), [1, 1, 2], [1, 1, 0]),
    "repeats_alone": (lambda v: torch.repeat_interleave(v, output_size=4), [1, 1, 2], [1, 1, 5]),
    "repeats_alone_negative": (lambda v: torch.repeat_interleave(v, output_size=4), [1, 1, 2], [1, -1, 4]),
    "assert_async": (lambda v: torch._assert_async(v), [1], [0]),
    "assert_async_with_words": (lambda v: torch._assert_async(v, "words"), [1], [0]),
    "assert_async_and_more": (lambda v: (torch._assert_async(v), v + 1)[1], [1], [0]),
    "grouped_mm": (
        lambda v: torch._grouped_mm(ones(16, 16, dtype=torch.bfloat16), ones(2, 16, 16, dtype=torch.bfloat16), offs=v.int()),
        [8, 16],
        [8, 99],
    ),
}
_READ: Cases = {
    "normal": (lambda v: torch.normal(torch.zeros(2, device="cuda"), v.float()), [1, 0], [1, -2]),
    "normal_of_one_mean": (lambda v: torch.normal(0.0, v.float()), [1, 0], [1, -2]),
    "repeat_interleave": (lambda v: torch.repeat_interleave(three(), v), [1, 1, 2], [1, -1, 2]),
    "searchsorted_sorter": (lambda v: torch.searchsorted(zeros(), ones(2), sorter=v), [0, 1, 2, 3], [0, 1, 2, 99]),
    "cholesky": (lambda v: torch.linalg.cholesky(v.float().view(2, 2)), [1, 0, 0, 1], [-1, 0, 0, -1]),
    "inv": (lambda v: torch.linalg.inv(v.float().view(2, 2)), [1, 0, 0, 1], [0, 0, 0, 0]),
    "solve": (lambda v: torch.linalg.solve(v.float().view(2, 2), ones(2)), [1, 0, 0, 1], [0, 0, 0, 0]),
    "segment_reduce": (lambda v: torch.segment_reduce(ones(4), "sum", lengths=v), [1, 3], [1, -3]),
}
_COPIED: Cases = {
    "bincount": (lambda v: torch.bincount(v, minlength=4), [1, 3], [1, -9]),
    "split": (lambda v: torch.split(ones(4), v.tolist()), [1, 3], [1, 9]),
    "ctc_loss": (
        lambda v: F.ctc_loss(
            torch.zeros(5, 2, 4, device="cuda"),
            torch.ones(2, 2, dtype=torch.long, device="cuda"),
            torch.tensor([5, 5], device="cuda"),
            v,
        ),
        [1, 2],
        [1, 9],
    ),
}
_TAKEN: Cases = {
    "cholesky_ex": (lambda v: torch.linalg.cholesky_ex(v.float().view(2, 2)), [1, 0, 0, 1], [-1, 0, 0, -1]),
    "normal_of_one_deviation": (lambda v: torch.normal(v.float(), 1.0), [1, 0], [1, -2]),
    "take_along_dim": (lambda v: zeros().take_along_dim(v, 0), [1, 3], [1, 9]),
    "pow": (lambda v: torch.pow(v, v), [1, 3], [1, -3]),
    "shift": (lambda v: v << v, [1, 3], [1, -3]),
    "floor_divide": (lambda v: torch.div(v, v, rounding_mode="floor"), [1, 3], [1, 0]),
    "remainder": (lambda v: v % v, [1, 3], [1, 0]),
    "grid_sample": (
        lambda v: F.grid_sample(ones(1, 1, 2, 2), v.float().view(1, 1, 1, 2), align_corners=False),
        [1, 0],
        [9, 9],
    ),
}
USES: dict[str, Use] = {
    **{name: Use(*case, "assert", "ran", "assert") for name, case in _ASSERTED.items()},
    **{name: Use(*case, "refused", "synchronization", "none") for name, case in _READ.items()},
    **{name: Use(*case, "refused", "host_copy", "none") for name, case in _COPIED.items()},
    **{name: Use(*case, "ran", "ran", "ran") for name, case in _TAKEN.items()},
    # The host reads the largest index, and leaves the negative one to the kernel.
    "one_hot_of_any": Use(F.one_hot, [1, 3], [1, -9], "assert", "synchronization", "none"),
}


def values(use: Use, which: str) -> torch.Tensor:
    return torch.tensor(use.good if which == "good" else use.bad, device="cuda")


def outcome(run: Callable[[], object]) -> str:
    """`ran`, `assert` or `refused`: what the host knows when the device has done all its work."""
    try:
        run()
        torch.cuda.synchronize()
    except Exception as error:
        return "assert" if "device-side assert triggered" in str(error) else "refused"
    return "ran"
