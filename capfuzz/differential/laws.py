"""Laws: what must hold of an op's answer, whatever the inputs; some need the op's answer to other inputs.

A law is a function of a `LawCall` that returns None where it holds, and else says what does not. It is checked on eager
answers; replays are compared with those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class LawCall:
    """One answer to be judged: arrays and scalars in, the same structure out with NumPy arrays for tensors."""

    inputs: Inputs
    outputs: Any
    answer: Callable[[Inputs], Any]
    """The op's answer to other inputs, in the same form: `call.answer({**call.inputs, "fold_factor": 1})`."""


Law = Callable[[LawCall], str | None]


def to_numpy(result: Any, read: Callable[[torch.Tensor], np.ndarray]) -> Any:
    """The structure of `result` with a NumPy array for every tensor."""
    if isinstance(result, torch.Tensor):
        return read(result)
    if isinstance(result, Mapping):
        return {key: to_numpy(value, read) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [to_numpy(value, read) for value in result]
    return result
