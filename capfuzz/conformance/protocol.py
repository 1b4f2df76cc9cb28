"""How one idiom is run and judged: the same code on a real GPU and on the simulated device.

Seeds are set before every eager run and every replay, never before the capture. Eager on A and on B, each on fresh buffers;
two warm-ups on a side stream; capture through `torch.cuda.graph` with A in static buffers; replays of A, B and B again, the
values copied into the static buffers each time. Outputs and every device and host buffer are compared exactly with eager's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from capfuzz.conformance.buffers import Buffers, Values, make, to_numpy, values
from capfuzz.conformance.suite import Idiom
from capfuzz.devices.errors import first_line, root_cause, rule_of_text

_SEED = 11
_HOST = ["lens_cpu", "indptr_cpu", "idx_cpu", "lens_np", "pinned"]


@dataclass(frozen=True)
class Measurement:
    """What happened.

    `verdict` is `equivalent`, `diverges:<cause>`, `capture_error:<rule>`, `replay_error`, `eager_error`, `observed` (a program
    that came to its end) or `raised` (one that did not). The rule is the one that the error's text alone tells. Causes of
    divergence: `stale` (A replays right, B does not), `values` (A does not either), `repeat` (the second replay of B differs
    from the first), `host_state` (host buffers only).
    """

    verdict: str
    message: str | None = None
    """The first line of the exception that is the cause, with its type where the verdict does not tell it."""
    observed: Any = None
    """What a program returned."""
    errors: list[str] = field(default_factory=list)
    """The whole chain of exceptions, outermost first."""


@dataclass
class _Run:
    outputs: list[Any]
    buffers: Values


def measure(idiom: Idiom) -> Measurement:
    """Runs one idiom on the current CUDA device, real or simulated."""
    result = _measure_program(idiom) if idiom.is_program else _measure_body(idiom)
    _settle()
    return result


def _measure_program(idiom: Idiom) -> Measurement:
    torch.manual_seed(_SEED)
    try:
        observed = idiom.run(make(values("A")))
    except Exception as error:
        return Measurement("raised", _described(root_cause(error)), errors=_chain(error))
    return Measurement("observed", observed=json.loads(json.dumps(observed)))


def _measure_body(idiom: Idiom) -> Measurement:
    eager: dict[str, _Run] = {}
    for which in ("A", "B"):
        buffers = make(values(which))
        try:
            eager[which] = _eager(idiom, buffers)
        except Exception as error:
            return Measurement("eager_error", _described(error), errors=_chain(error))
    buffers = make(values("A"))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            idiom.run(buffers)
    torch.cuda.current_stream().wait_stream(side)
    buffers.load(values("A"))
    graph = torch.cuda.CUDAGraph()
    try:
        # A stream of its own: PyTorch's shared one is lent out again to a body that asks for a 32nd stream.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            outputs = idiom.run(buffers)
    except Exception as error:
        return Measurement(f"capture_error:{rule_of_text(error).value}", first_line(root_cause(error)), errors=_chain(error))
    return _judge(eager, graph, buffers, outputs)


def _eager(idiom: Idiom, buffers: Buffers) -> _Run:
    torch.manual_seed(_SEED)
    return _read(idiom.run(buffers), buffers)


def _judge(eager: dict[str, _Run], graph: torch.cuda.CUDAGraph, buffers: Buffers, outputs: list[Any]) -> Measurement:
    runs: list[_Run] = []
    for which in ("A", "B", "B"):
        buffers.load(values(which))
        torch.manual_seed(_SEED)
        try:
            graph.replay()
            runs.append(_read(outputs, buffers))
        except Exception as error:
            return Measurement("replay_error", _described(error), errors=_chain(error))
    first, changed, again = runs
    device = [name for name in first.buffers if name not in _HOST]
    if not _equal(first, eager["A"], device):
        return Measurement("diverges:values")
    if not _equal(changed, eager["B"], device):
        return Measurement("diverges:stale")
    if not _equal(again, changed, device):
        return Measurement("diverges:repeat")
    if not _equal(first, eager["A"], _HOST) or not _equal(changed, eager["B"], _HOST):
        return Measurement("diverges:host_state")
    return Measurement("equivalent")


def _read(outputs: list[Any], buffers: Buffers) -> _Run:
    torch.cuda.synchronize()
    return _Run([to_numpy(item) if isinstance(item, torch.Tensor) else item for item in outputs], buffers.read())


def _equal(left: _Run, right: _Run, names: list[str]) -> bool:
    pairs = [*zip(left.outputs, right.outputs, strict=True), *((left.buffers[name], right.buffers[name]) for name in names)]
    return all(_same(a, b) for a, b in pairs)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _chain(error: BaseException | None) -> list[str]:
    chain: list[str] = []
    while error is not None and len(chain) < 5:
        chain.append(_described(error))
        error = error.__context__
    return chain


def _settle() -> None:
    """Puts right what a failed capture leaves behind; raises if this process has lost its device."""
    torch.cuda.set_stream(torch.cuda.default_stream())  # a failed `torch.cuda.graph` leaves its own current
    generator = torch.cuda.default_generators[0]
    generator.graphsafe_set_state(generator.clone_state())  # a failed capture that drew numbers leaves it broken
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # no stream starts with memory that an earlier idiom left it
    torch.zeros(1, device="cuda").item()
