"""Every hint names a rewrite that is right: the fault that it is for, and the same op as the hint has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from capfuzz.devices import Device, Rule
from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import Cause, Drive, Mode, Outcome, Runner, Schedule, TwoPart, check
from capfuzz.findings.hints import _HINTS, hint

FEEDS = [
    {
        "x": Argument(np.array(values, np.int64), LAYOUTS["offset"]),
        "host": Argument(np.array(values, np.int64), space=Space.PINNED),
    }
    for values in ([3, 1, 2], [5, 0, 4])
]
Op = Callable[..., Any]
_pairs: dict[str, list[tuple[Any, Any, Schedule]]] = {}


def pair(label: str, schedule: Schedule | None = None) -> Callable[[Callable[[], tuple[Any, Any]]], None]:
    """Registers a faulty op that gets `label`, and the op as the hint would have it."""

    def register(make: Callable[[], tuple[Any, Any]]) -> None:
        _pairs.setdefault(label, []).append((*make(), schedule or Schedule()))

    return register


@pair("capture_error:host_copy")
def _scalar_store() -> tuple[Op, Op]:
    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, dtype=x.dtype, device=x.device)
        out[1:] = x.cumsum(0)
        out[0] = 0
        return out

    def zero(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, dtype=x.dtype, device=x.device)
        out[1:] = x.cumsum(0)
        out[:1].zero_()
        return out

    return faulty, zero


@pair("capture_error:host_copy")
def _prepend() -> tuple[Op, Op]:
    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.tensor([0]).to(x.device), x.cumsum(0)])

    return faulty, lambda x, host: F.pad(x.cumsum(0), (1, 0))


@pair("capture_error:host_copy")
def _fill() -> tuple[Op, Op]:
    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        out[0] = 7
        return out

    def fill(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        out[:1].fill_(7)
        return out

    return faulty, fill


@pair("capture_error:synchronization")
def _branch() -> tuple[Op, Op]:
    return (
        lambda x, host: x * 2 if bool(x.sum() > 6) else x,
        lambda x, host: torch.where(x.sum() > 6, x * 2, x),
    )


@pair("capture_error:synchronization")
def _output_size() -> tuple[Op, Op]:
    def repeated(x: torch.Tensor, size: int | None) -> torch.Tensor:
        return torch.repeat_interleave(x, torch.full_like(x, 2), output_size=size)

    return lambda x, host: repeated(x, None), lambda x, host: repeated(x, 2 * x.numel())


@pair("capture_error:unjoined_stream")
def _unjoined() -> tuple[Op, Op]:
    def op(x: torch.Tensor, joins: bool) -> torch.Tensor:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            y = x * 2
        if joins:
            current.wait_stream(side)
        return y

    return lambda x, host: op(x, False), lambda x, host: op(x, True)


@pair("capture_error:foreign_stream")
def _foreign() -> tuple[Op, Op]:
    def op(x: torch.Tensor, forks: bool) -> torch.Tensor:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        if forks:
            side.wait_stream(current)
        with torch.cuda.stream(side):
            x.mul_(1)  # allocates nothing
        current.wait_stream(side)
        return x + 0

    return lambda x, host: op(x, False), lambda x, host: op(x, True)


@pair("capture_error:nested_capture")
def _nested() -> tuple[Op, Op]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            return inner(x)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        y = inner(x)
        graph.capture_end()
        return y

    return faulty, lambda x, host: inner(x)


@pair("capture_error:host_exception")
def _expects() -> tuple[TwoPart, TwoPart]:
    def body(prepared: Any, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        assert prepared > 0
        return x + 1

    def clears(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> int:
        return 0 if mode is Mode.CAPTURE else x.numel()

    return TwoPart(clears, body), TwoPart(lambda mode, x, host: x.numel(), body)


@pair("divergence:stale_host_value")
def _list() -> tuple[Op, Op]:
    kept: dict[str, int] = {}

    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            kept["total"] = int(x.sum())
        return torch.full_like(x, kept["total"])

    return faulty, lambda x, host: x.sum().expand(x.shape).clone()


@pair("divergence:unwritten_output")
def _unwritten() -> tuple[Op, Op]:
    def op(x: torch.Tensor, writes: bool) -> torch.Tensor:
        out = torch.zeros_like(x) if writes else torch.empty_like(x)
        out[1:] = x[1:]
        return out

    return lambda x, host: op(x, False), lambda x, host: op(x, True)


@pair("divergence:not_idempotent")
def _accumulates() -> tuple[Op, Op]:
    held: dict[str, torch.Tensor] = {}

    def op(x: torch.Tensor, resets: bool) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            held["sum"] = torch.zeros_like(x)
        if resets:
            held["sum"].zero_()
        return held["sum"].add_(x).clone()

    return lambda x, host: op(x, False), lambda x, host: op(x, True)


@pair("divergence:host_state")
def _host() -> tuple[Op, Op]:
    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            host.zero_()
        return x + 1

    return faulty, lambda x, host: x + 1


@pair("divergence:out_of_bounds")
def _bounds() -> tuple[Op, Op]:
    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return x.as_strided((x.numel() + 1,), (1,), x.storage_offset()).fill_(1)[:-1]

    return faulty, lambda x, host: x.fill_(1)


@pair("divergence:shape")
def _shape() -> tuple[Op, Op]:
    kept: dict[str, int] = {}

    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            kept["n"] = int(x[0])
        return x.sum().expand(kept["n"]).clone()

    return faulty, lambda x, host: x.sum().expand(x.numel()).clone()


@pair("divergence:dtype")
def _dtype() -> tuple[Op, Op]:
    return lambda x, host: x.int() if torch.cuda.is_current_stream_capturing() else x + 0, lambda x, host: x + 0


@pair("divergence:structure")
def _structure() -> tuple[Op, Op]:
    return lambda x, host: [x + 0] if torch.cuda.is_current_stream_capturing() else x + 0, lambda x, host: x + 0


@pair("divergence:values")
def _values() -> tuple[Op, Op]:
    return lambda x, host: x + 2 if torch.cuda.is_current_stream_capturing() else x + 1, lambda x, host: x + 1


@pair("divergence:aliased_output", Schedule(second="twin"))
def _aliased() -> tuple[Op, Op]:
    made: list[torch.Tensor] = []

    def faulty(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            return x + 1
        if not made:
            made.append(torch.empty_like(x))
        return torch.add(x, 1, out=made[0])

    return faulty, lambda x, host: x + 1


@pair("divergence:aliased_output")
def _held() -> tuple[Runner, Runner]:
    def runner(copies: bool) -> Callable[..., torch.Tensor]:
        kept: dict[str, Any] = {}

        def call(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
            if not kept:
                kept["x"], kept["graph"] = x.clone(), torch.cuda.CUDAGraph()
                with torch.cuda.graph(kept["graph"]):
                    kept["out"] = kept["x"] + 1
            kept["x"].copy_(x)
            kept["graph"].replay()
            out: torch.Tensor = kept["out"].clone() if copies else kept["out"]
            return out

        return call

    def eager(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return x + 1

    return Runner(eager, lambda: runner(False)), Runner(eager, lambda: runner(True))


@pair("dangling_buffer")
def _dangling() -> tuple[TwoPart, TwoPart]:
    held: dict[str, torch.Tensor] = {}

    def new(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        held["buffer"] = x.clone()
        return held["buffer"]

    def kept(mode: Mode, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return held.setdefault("kept", torch.empty_like(x)).copy_(x)

    def body(prepared: torch.Tensor, x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        return prepared + 1

    return TwoPart(new, body), TwoPart(kept, body)


def judged(device: Device, implementation: Any, schedule: Schedule) -> Outcome:
    return check(device, implementation, FEEDS, drive=Drive(schedule))


@pytest.mark.parametrize(("label", "number"), [(label, n) for label, pairs in _pairs.items() for n in range(len(pairs))])
def test_the_rewrite_of_a_hint_is_equivalent(device: Device, label: str, number: int) -> None:
    faulty, mended, schedule = _pairs[label][number]
    outcome = judged(device, faulty, schedule)
    assert outcome.label == label, outcome
    assert hint(outcome.label)
    mended_outcome = judged(device, mended, schedule)
    assert mended_outcome.label == "equivalent", mended_outcome


def test_every_rule_and_cause_has_a_hint_and_a_rewrite() -> None:
    labels = {f"capture_error:{rule.value}" for rule in Rule} | {f"divergence:{cause.value}" for cause in Cause}
    labels |= {"dangling_buffer"}
    assert labels <= set(_HINTS)
    # An allocation that needs the driver is refused to another thread, or on a stream beside the capture: no rewrite of one op.
    assert labels - set(_pairs) == {"capture_error:allocation"}
