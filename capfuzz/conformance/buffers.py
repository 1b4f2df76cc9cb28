"""The one set of buffers that every idiom works on, and the two sets of values, A and B, that it is run with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Values = dict[str, npt.NDArray[Any]]


@dataclass
class Buffers:
    """What an idiom is given as `s`. Shapes and dtypes are the same for both sets of values."""

    lens: torch.Tensor
    """int32[6] on the GPU, sum 15."""
    indptr: torch.Tensor
    """int32[7] on the GPU: 0, then the running sum of `lens`."""
    x: torch.Tensor
    """int32[6] on the GPU, 0..8."""
    f: torch.Tensor
    """float32[6, 8] on the GPU."""
    idx: torch.Tensor
    """int64[6] on the GPU: a permutation of 0..5."""
    mask: torch.Tensor
    """bool[6] on the GPU: three of six are set."""
    n: torch.Tensor
    """int32[] on the GPU, 1..5."""
    out: torch.Tensor
    """int32[64] on the GPU."""
    lens_cpu: torch.Tensor
    """`lens` in pageable host memory."""
    indptr_cpu: torch.Tensor
    """`indptr` in pageable host memory."""
    idx_cpu: torch.Tensor
    """`idx` in pageable host memory."""
    lens_np: npt.NDArray[np.int32]
    """`lens` as a NumPy array."""
    pinned: torch.Tensor
    """int32[6] in pinned host memory."""

    @property
    def dev(self) -> torch.device:
        return torch.device("cuda", 0)

    def load(self, values: Values) -> None:
        """Puts values into every buffer, where it is; waits, so that nothing is in flight."""
        for name, new in values.items():
            buffer = getattr(self, name)
            if isinstance(buffer, np.ndarray):
                buffer[...] = new
            else:
                buffer.copy_(torch.from_numpy(new))
        torch.cuda.synchronize()

    def read(self) -> Values:
        """A copy of every buffer's contents."""
        return {f.name: to_numpy(getattr(self, f.name)) for f in fields(self)}


def to_numpy(value: Any) -> npt.NDArray[Any]:
    """A copy of a tensor's or an array's contents on the host."""
    if isinstance(value, torch.Tensor):
        return np.array(value.detach().to("cpu", copy=True).numpy())
    return np.array(value)


def values(which: str) -> Values:
    """The values `A` or `B`."""
    rng = np.random.default_rng({"A": 1, "B": 2}[which])
    lens = np.array({"A": [1, 4, 0, 5, 2, 3], "B": [3, 1, 4, 1, 6, 0]}[which], np.int32)
    indptr = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    idx = rng.permutation(6).astype(np.int64)
    return {
        "lens": lens,
        "indptr": indptr,
        "x": rng.permutation(9)[:6].astype(np.int32),
        "f": rng.standard_normal((6, 8)).astype(np.float32),
        "idx": idx,
        "mask": rng.permutation(np.array([True, True, True, False, False, False])),
        "n": np.array({"A": 2, "B": 4}[which], np.int32),
        "out": rng.integers(0, 99, 64).astype(np.int32),
        "lens_cpu": lens.copy(),
        "indptr_cpu": indptr.copy(),
        "idx_cpu": idx.copy(),
        "lens_np": lens.copy(),
        "pinned": rng.integers(0, 99, 6).astype(np.int32),
    }


def make(contents: Values) -> Buffers:
    """Fresh buffers with these contents."""
    made: dict[str, Any] = {}
    for name, array in contents.items():
        if name == "lens_np":
            made[name] = array.copy()
            continue
        tensor = torch.from_numpy(array.copy())
        if name == "pinned":
            tensor = tensor.pin_memory()
        elif not name.endswith("_cpu"):
            tensor = tensor.to("cuda")
        made[name] = tensor
    return Buffers(**made)
