"""The arguments of a case as source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capfuzz.devices.layout import CONTIGUOUS, Argument, Space
from capfuzz.differential import Feed
from capfuzz.repro.literals import WIDTH, array_literal, literal

PLACE = '''\
def place(values, before, step):
    """Puts `values` into a larger buffer: `before` cells in front of them, `step` cells from one to the next."""
    size, filler = before + step * values.numel() + 4, 0x6B6B6B6B6B6B6B6B >> (64 - 8 * values.element_size())
    base = torch.full((size,), filler, dtype=values.dtype, device=values.device, pin_memory=values.is_pinned())
    return base.as_strided(values.shape, [step * stride for stride in values.stride()], before).copy_(values)
'''


def arguments_text(feeds: Sequence[Feed], guarded: bool) -> str:
    """A dict of the arguments, of step `step` where there are several. `guarded`: cells lie around contiguous arrays too."""
    items = [f'"{name}": {_value([feed[name] for feed in feeds], guarded)}' for name in feeds[0]]
    line = f"{{{', '.join(items)}}}"
    if len(line) <= WIDTH - 12:
        return line
    lines: list[str] = []
    for name, item in zip(feeds[0], items, strict=True):
        is_array = isinstance(feeds[0][name], Argument)
        if lines and not is_array and "torch." not in lines[-1] and len(lines[-1]) + len(item) < WIDTH - 12:
            lines[-1] += f" {item},"  # scalars share a line
        else:
            lines.append(f"    {item},")
    return "\n".join(["{", *lines, "}"])


def _value(steps: Sequence[object], guarded: bool) -> str:
    first = steps[0]
    if not isinstance(first, Argument):
        return literal(first)
    texts = [array_literal(step.array) for step in steps if isinstance(step, Argument)]
    chosen = texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}][step]"
    on = {Space.DEVICE: ', device="cuda"', Space.PINNED: ", pin_memory=True", Space.HOST: ""}[first.space]
    dtype = np.dtype(first.array.dtype).name
    is_made = texts[0].startswith("torch.")  # an empty one, in every step
    tensor = f"{texts[0][:-1]}, dtype=torch.{dtype}{on})" if is_made else f"torch.tensor({chosen}, dtype=torch.{dtype}{on})"
    if first.layout == CONTIGUOUS and not guarded:
        return tensor
    return f"place({tensor}, {first.layout.before}, {first.layout.step})"
