"""The check: one case run eagerly, captured, and replayed with changed inputs; everything that can be seen is compared.

The order is the order of blame. Eager on fresh buffers for every step; eager on the static buffers (the warm-up, which
also shows whether eager agrees with itself); capture; replays of the captured inputs, of each changed ones, of the last again
and of the first again, with new contents copied in each time; eager against the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

import numpy as np

from capfuzz.devices.base import Buffer, Device, Graph
from capfuzz.devices.errors import DanglingBufferError, first_line, root_cause, rule_of
from capfuzz.devices.layout import Argument, Space
from capfuzz.devices.trace import Location, blamed, code_of
from capfuzz.devices.tracer import Tracer
from capfuzz.differential.blame import Traces, guilty_op, last_writer
from capfuzz.differential.classify import Replayed, cause_of, describe_step, first_mismatch
from capfuzz.differential.laws import Inputs, Law, LawCall, to_numpy
from capfuzz.differential.observe import Observed, observe, outputs_of, same
from capfuzz.differential.two_part import Mode, TwoPart
from capfuzz.differential.verdict import EQUIVALENT, Blame, Cause, Mismatch, Outcome, Verdict

Feed = Mapping[str, Argument | int | float | bool | str | None]
Implementation = Callable[..., Any] | TwoPart
Reference = Callable[..., Any]
_SEED = 11
# What an implementation may raise: `sys.exit()` in it is its fault, Ctrl-C is not.
RAISED = (Exception, SystemExit)


@dataclass
class _Run:
    """The state of one check; `traces` is None unless the check is repeated to find the guilty op."""

    device: Device
    implementation: Implementation
    feeds: Sequence[Feed]
    traces: Traces | None = None
    eager: list[Observed] = field(default_factory=list)
    replays: list[Replayed] = field(default_factory=list)

    def tracer(self) -> Tracer | None:
        return None if self.traces is None else Tracer(values=True, within=self.code)

    def buffers(self, feed: Feed) -> dict[str, Buffer]:
        return {name: self.device.buffer(value) for name, value in feed.items() if isinstance(value, Argument)}

    def arguments(self, feed: Feed, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
        return {name: buffers[name].tensor if name in buffers else value for name, value in feed.items()}

    def eager_body(self, feed: Feed, buffers: Mapping[str, Buffer]) -> Callable[[], Any]:
        """One eager call: of an implementation in two parts, both."""
        arguments = self.arguments(feed, buffers)
        two = self.implementation
        if not isinstance(two, TwoPart):
            return partial(two, **arguments)
        return lambda: two.body(two.prepare(Mode.EAGER, **arguments), **arguments)

    def captured_body(self, feed: Feed, buffers: Mapping[str, Buffer]) -> Callable[[], Any]:
        """What is captured; the host's part for it has run."""
        arguments = self.arguments(feed, buffers)
        two = self.implementation
        if not isinstance(two, TwoPart):
            return partial(two, **arguments)
        prepared = self.device.eager(partial(two.prepare, Mode.CAPTURE, **arguments), _SEED)
        return partial(two.body, prepared, **arguments)

    def prepare_replay(self, feed: Feed, buffers: Mapping[str, Buffer], seed: int) -> None:
        if isinstance(self.implementation, TwoPart):
            self.device.eager(partial(self.implementation.prepare, Mode.REPLAY, **self.arguments(feed, buffers)), seed)

    @property
    def has_state(self) -> bool:
        return any(isinstance(value, Argument) and value.is_state for value in self.feeds[0].values())

    @property
    def code(self) -> CodeType | None:
        return code_of(self.implementation.body if isinstance(self.implementation, TwoPart) else self.implementation)


class _Fault(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def check(
    device: Device,
    implementation: Implementation,
    feeds: Sequence[Feed],
    reference: Reference | None = None,
    laws: Mapping[str, Law] | None = None,
) -> Outcome:
    """Runs the whole check on one case.

    `feeds[0]` is what is captured, each later feed is one step of changed inputs: same names, same shapes, dtypes, layouts and
    scalars. `implementation` is called with the feed's names as keywords: tensors for arrays, scalars as they are. `reference`
    is called with NumPy arrays instead and returns the same structure. The outcome of a divergence carries no blame yet:
    `explain` adds it. `laws` are checked last, on the last step's eager answer.
    """
    return _checked(_Run(device, implementation, feeds), reference, laws or {})


def explain(
    device: Device,
    implementation: Implementation,
    feeds: Sequence[Feed],
    reference: Reference | None,
    outcome: Outcome,
    laws: Mapping[str, Law] | None = None,
) -> Outcome:
    """Runs the case again with every op's values traced, and blames the op where the runs part.

    An outcome that already has its line (a capture error) comes back as it is.
    """
    if outcome.blame.location is not None or not outcome.is_fault:
        return outcome
    run = _Run(device, implementation, feeds, traces=Traces())
    traced = _checked(run, reference, laws or {})
    if (traced.verdict, traced.cause) != (outcome.verdict, outcome.cause) or run.traces is None:
        return outcome
    if outcome.verdict is Verdict.DIVERGENCE:
        blame = guilty_op(run.traces, unwritten=outcome.cause == Cause.UNWRITTEN_OUTPUT)
    else:
        blame = last_writer(run.traces)
        code = run.code
        if blame.location is None and code is not None:
            blame = Blame(Location(code, code.co_firstlineno), None)
    return Outcome(outcome.verdict, outcome.cause, outcome.message, blame, outcome.mismatch)


def _checked(run: _Run, reference: Reference | None, laws: Mapping[str, Law]) -> Outcome:
    try:
        _eager(run)
        static = run.buffers(run.feeds[0])
        _warm_up(run, static)
        graph = _capture(run, static)
        try:
            _replay(run, static, graph)
        finally:
            graph.close()
        if reference is not None:
            _compare_with_reference(run, reference)
        _check_laws(run, laws)
    except _Fault as fault:
        return fault.outcome
    return EQUIVALENT


def _eager(run: _Run) -> None:
    for step, feed in enumerate(run.feeds):
        buffers = run.buffers(feed)
        tracer = run.tracer()
        try:
            result = run.device.eager(run.eager_body(feed, buffers), _SEED + step, tracer)
        except RAISED as error:
            raise _Fault(_raised(run, Verdict.EAGER_ERROR, type(error).__name__, error)) from error
        seen = observe(run.device, result, buffers)
        if run.traces is not None and tracer is not None:
            run.traces.add_eager(step, tracer, result)
        run.eager.append(seen)
        for name, buffer in buffers.items():
            if not buffer.guard_intact(seen.buffers[name]):
                before = run.device.buffer(_argument(feed, name)).snapshot()
                mismatch = Mismatch("eager", f"buffer {name}", "before", "after", before, seen.buffers[name])
                raise _Fault(_divergence(Cause.OUT_OF_BOUNDS, mismatch))


def _argument(feed: Feed, name: str) -> Argument:
    value = feed[name]
    assert isinstance(value, Argument)
    return value


def _fill(feed: Feed, buffers: Mapping[str, Buffer], keep_state: bool = False) -> None:
    for name, buffer in buffers.items():
        if not (keep_state and _argument(feed, name).is_state):
            buffer.write(_argument(feed, name).array)


def _warm_up(run: _Run, static: Mapping[str, Buffer]) -> None:
    """Eager once more, in the static buffers: what every serving engine does before it captures."""
    feed = run.feeds[0]
    try:
        result = run.device.eager(run.eager_body(feed, static), _SEED, None)
    except RAISED as error:
        raise _Fault(_raised(run, Verdict.EAGER_ERROR, type(error).__name__, error)) from error
    again = observe(run.device, result, static)
    if not same(run.eager[0], again):
        mismatch = first_mismatch(run.eager[0], again, "eager, the same inputs twice", ("first", "second"))
        raise _Fault(
            Outcome(Verdict.NONDETERMINISTIC, None, "eager disagrees with itself on the same inputs", mismatch=mismatch)
        )
    _fill(feed, static)


def _capture(run: _Run, static: Mapping[str, Buffer]) -> Graph:
    feed = run.feeds[0]
    try:
        graph = run.device.capture(run.captured_body(feed, static), _SEED, run.tracer())
    except RAISED as error:
        raise _Fault(_raised(run, Verdict.CAPTURE_ERROR, rule_of(error).value, root_cause(error))) from error
    spaces = _spaces(feed)
    for name, buffer in static.items():
        if spaces[name] is Space.DEVICE:
            continue
        left = buffer.snapshot()
        expected = run.eager[0].buffers[name]
        if not bool(np.array_equal(left, expected)):
            mismatch = Mismatch("capture", f"buffer {name}", "eager", "capture", expected, left)
            graph.close()
            raise _Fault(_divergence(Cause.HOST_STATE, mismatch))
    return graph


def _spaces(feed: Feed) -> dict[str, Space]:
    return {name: value.space for name, value in feed.items() if isinstance(value, Argument)}


def _replay(run: _Run, static: Mapping[str, Buffer], graph: Graph) -> None:
    steps = len(run.feeds)
    order = [*range(steps), steps - 1, 0] if steps > 1 else [0, 0]
    expected = _timeline(run, order)
    differs = False
    for position, step in enumerate(order):
        _fill(run.feeds[step], static, keep_state=True)
        tracer = run.tracer()
        try:
            run.prepare_replay(run.feeds[step], static, _SEED + step)
            graph.replay(_SEED + step, tracer)
        except DanglingBufferError as error:
            blame = Blame(error.location, error.op)
            raise _Fault(Outcome(Verdict.DANGLING_BUFFER, None, first_line(error), blame)) from error
        except RAISED as error:
            raise _Fault(_raised(run, Verdict.REPLAY_ERROR, type(error).__name__, error)) from error
        seen = observe(run.device, graph.result, static)
        run.replays.append(Replayed(step, seen))
        agrees = same(expected[position], seen)
        differs = differs or not agrees
        if run.traces is not None and tracer is not None:
            run.traces.add_replay(step, tracer, graph.result, agrees)
    if differs:
        raise _Fault(_diverged(run, expected))


def _timeline(run: _Run, order: Sequence[int]) -> list[Observed]:
    """What each replay must give: eager on the same inputs; for an op with state, eager as often before on the same state."""
    if not run.has_state:
        return [run.eager[step] for step in order]
    buffers = run.buffers(run.feeds[order[0]])
    expected: list[Observed] = []
    for step in order:
        _fill(run.feeds[step], buffers, keep_state=bool(expected))
        result = run.device.eager(run.eager_body(run.feeds[step], buffers), _SEED + step, None)
        expected.append(observe(run.device, result, buffers))
    return expected


def _diverged(run: _Run, expected: Sequence[Observed]) -> Outcome:
    for number, (wanted, replay) in enumerate(zip(expected, run.replays, strict=True), 1):
        where = f"replay {number} ({describe_step(replay.step)})"
        captured = run.eager[0] if replay.step else None
        mismatch = first_mismatch(wanted, replay.seen, where, ("eager", "replay"), captured)
        if mismatch is not None:
            return _divergence(
                cause_of(expected, run.eager[0], run.replays, _spaces(run.feeds[0]), mismatch, run.has_state), mismatch
            )
    raise AssertionError("a replay differs, and no observable does")


def _divergence(cause: Cause, mismatch: Mismatch) -> Outcome:
    return Outcome(Verdict.DIVERGENCE, cause.value, f"{mismatch.path} differs at {mismatch.where}", mismatch=mismatch)


def _compare_with_reference(run: _Run, reference: Reference) -> None:
    for step, feed in enumerate(run.feeds):
        arrays = {name: value.array.copy() if isinstance(value, Argument) else value for name, value in feed.items()}
        expected = outputs_of(run.device, reference(**arrays))
        for path, leaf in expected.items():
            got = run.eager[step].outputs.get(path)
            kind = leaf.dtype.removeprefix("numpy.")
            same_kind = got is not None and kind == got.dtype.removeprefix("torch.")
            if got is not None and same_kind and bool(np.array_equal(leaf.array, got.array)):
                continue
            left: np.ndarray | str = leaf.array
            actual: np.ndarray | str = "nothing" if got is None else got.array
            if got is not None and not same_kind:
                left, actual = kind, got.dtype.removeprefix("torch.")
            mismatch = Mismatch(f"eager ({describe_step(step)})", path, "reference", "eager", left, actual)
            raise _Fault(
                Outcome(Verdict.REFERENCE_MISMATCH, None, f"{path} is not what the reference gives", mismatch=mismatch)
            )


def _check_laws(run: _Run, laws: Mapping[str, Law]) -> None:
    if not laws:
        return
    feed = run.feeds[-1]
    inputs = {name: value.array.copy() if isinstance(value, Argument) else value for name, value in feed.items()}

    def answer(changed: Inputs) -> Any:
        """Eager on other inputs; arrays keep the layout and the space of the argument that they stand for."""
        other = {name: _like(feed.get(name), value) for name, value in changed.items()}
        result = run.device.eager(run.eager_body(other, run.buffers(other)), _SEED, None)
        return to_numpy(result, run.device.read)

    outputs = answer(inputs)
    for name, law in laws.items():
        try:
            broken = law(LawCall(inputs, outputs, answer))
        except RAISED as error:
            raise _Fault(_raised(run, Verdict.INVARIANT, name, error)) from error
        if broken is not None:
            raise _Fault(Outcome(Verdict.INVARIANT, name, broken))


def _like(argument: object, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return replace(argument, array=value) if isinstance(argument, Argument) else Argument(value)


def _raised(run: _Run, verdict: Verdict, cause: str, error: BaseException) -> Outcome:
    return Outcome(verdict, cause, first_line(error), Blame(blamed(error), run.device.failed_op(error)))
