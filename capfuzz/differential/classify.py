"""Names the cause of a divergence from what the replays left, in the order that separates one cause from the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from capfuzz.devices import poison
from capfuzz.devices.layout import Space
from capfuzz.devices.tracer import host_values
from capfuzz.differential.observe import Leaf, Observed, same_values
from capfuzz.differential.verdict import Cause, Mismatch


@dataclass(frozen=True)
class Replayed:
    """One replay: which step's inputs it had (0: the captured ones), and what it left."""

    step: int
    seen: Observed


def describe_step(step: int) -> str:
    return "captured inputs" if step == 0 else f"changed inputs {step}"


def first_mismatch(
    expected: Observed, actual: Observed, where: str, names: tuple[str, str], captured: Observed | None = None
) -> Mismatch | None:
    """The first observable that differs, outputs before buffers; None when all agree."""
    if expected.outputs.keys() != actual.outputs.keys():
        return Mismatch(where, "output", *names, _paths(expected), _paths(actual), note=Cause.STRUCTURE.value)
    for path, left in expected.outputs.items():
        right = actual.outputs[path]
        if left.dtype != right.dtype or left.on_device != right.on_device:
            return Mismatch(where, path, *names, _kind(left), _kind(right), note=Cause.DTYPE.value)
        if left.array.shape != right.array.shape:
            return Mismatch(where, path, *names, left.array, right.array, note=Cause.SHAPE.value)
        if not same_values(left.array, right.array):
            stale = captured.outputs.get(path) if captured is not None else None
            return Mismatch(where, path, *names, left.array, right.array, stale.array if stale else None)
    for name, base in expected.buffers.items():
        if not same_values(base, actual.buffers[name]):
            return Mismatch(where, f"buffer {name}", *names, base, actual.buffers[name])
    return None


def _paths(seen: Observed) -> str:
    return ", ".join(seen.outputs) or "nothing"


def _kind(leaf: Leaf) -> str:
    return f"{leaf.dtype} on {'the device' if leaf.on_device else 'the host'}"


def cause_of(
    expected: Sequence[Observed],
    captured: Observed,
    replays: Sequence[Replayed],
    spaces: Mapping[str, Space],
    mismatch: Mismatch,
    has_state: bool = False,
) -> Cause:
    """The cause of a divergence whose first difference is `mismatch`.

    `expected` is what each replay must give, `captured` what eager gives for the captured inputs. An op with state may answer
    the same inputs in another way each time.

    Shape and dtype speak for themselves. An element that holds poison was not written. A replay that differs from an earlier
    replay of the same inputs is not idempotent. A replay of changed inputs that repeats what the captured inputs gave is stale.
    """
    if mismatch.note:
        return Cause(mismatch.note)
    if _unwritten(expected, replays):
        return Cause.UNWRITTEN_OUTPUT
    if not has_state and _not_idempotent(replays):
        return Cause.NOT_IDEMPOTENT
    if mismatch.path.startswith("buffer "):
        name = mismatch.path.removeprefix("buffer ")
        return Cause.VALUES if spaces[name] is Space.DEVICE else Cause.HOST_STATE
    if _stale(expected, captured, replays, mismatch.path):
        return Cause.STALE_HOST_VALUE
    return Cause.VALUES


def _unwritten(expected: Sequence[Observed], replays: Sequence[Replayed]) -> bool:
    for wanted, replay in zip(expected, replays, strict=True):
        for path, leaf in wanted.outputs.items():
            got = replay.seen.outputs[path]
            if got.array.shape != leaf.array.shape or same_values(leaf.array, got.array):
                continue
            dtype = getattr(torch, leaf.dtype.removeprefix("torch."), None)
            if not isinstance(dtype, torch.dtype) or dtype is torch.bool:
                continue
            ours, theirs = _poison(dtype, poison.EAGER), _poison(dtype, poison.CAPTURE)
            if ours is None or theirs is None:
                continue
            differs = leaf.array != got.array
            if bool((differs & ((leaf.array == ours) | (got.array == theirs))).any()):
                return True
    return False


@cache
def _poison(dtype: torch.dtype, side: int) -> np.ndarray | None:
    """The poison as a leaf's array shows it: its bits, for a dtype that NumPy lacks."""
    value = poison.value(dtype, side)
    return None if value is None else host_values(torch.tensor(value, dtype=dtype))


def _not_idempotent(replays: Sequence[Replayed]) -> bool:
    first: dict[int, Observed] = {}
    for replay in replays:
        earlier = first.setdefault(replay.step, replay.seen)
        if earlier is not replay.seen and first_mismatch(earlier, replay.seen, "", ("", "")) is not None:
            return True
    return False


def _stale(expected: Sequence[Observed], captured: Observed, replays: Sequence[Replayed], path: str) -> bool:
    """Every replay whose inputs changed the answer gave the captured inputs' answer where it went wrong."""
    old = captured.outputs[path].array
    wrong = False
    for step, replay in zip(expected, replays, strict=True):
        wanted, got = step.outputs[path].array, replay.seen.outputs[path].array
        if wanted.shape != got.shape or got.shape != old.shape:
            return False
        differs = wanted != got
        if bool(differs.any()):
            wrong = True
            if not bool((got[differs] == old[differs]).all()):
                return False
    return wrong
