"""The check: one case run eagerly, captured, and replayed with changed inputs; everything that can be seen is compared.

The order is the order of blame. Eager on fresh buffers for every step; eager on the static buffers (the warm-up, which
also shows whether eager agrees with itself); capture; replays of the captured inputs, of each changed ones, of the last again
and of the first again, with new contents copied in each time; eager against the reference. The schedule may add to it, and a
cold start captures first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from capfuzz.devices.base import Buffer, Device, Graph, LookAgainError
from capfuzz.devices.layout import Argument, Space
from capfuzz.differential.classify import Replayed, describe_step, first_mismatch
from capfuzz.differential.driving import SecondGraph, drive_runner, happen_between
from capfuzz.differential.laws import Inputs, Law, LawCall, to_numpy
from capfuzz.differential.observe import Observed, observe, outputs_of, same, same_values
from capfuzz.differential.run import (
    RAISED,
    SEED,
    SIMPLY,
    Drive,
    Fault,
    Feed,
    Implementation,
    Run,
    argument,
    contiguous,
    divergence,
    fill,
    first_divergence,
    laid_out_as,
    raised,
    spaces_of,
)
from capfuzz.differential.runner import Runner
from capfuzz.differential.verdict import EQUIVALENT, Cause, Mismatch, Outcome, Verdict

Reference = Callable[..., Any]


def check(
    device: Device,
    implementation: Implementation,
    feeds: Sequence[Feed],
    reference: Reference | None = None,
    laws: Mapping[str, Law] | None = None,
    drive: Drive = SIMPLY,
) -> Outcome:
    """Runs the whole check on one case.

    `feeds[0]` is what is captured, each later feed is one step of changed inputs: same names, same shapes, dtypes, layouts and
    scalars. `implementation` is called with the feed's names as keywords: tensors for arrays, scalars as they are. `reference`
    is called with NumPy arrays instead and returns the same structure. The outcome of a divergence carries no blame yet:
    `explain` adds it. `laws` are checked last, on the last step's eager answer. `drive` says how it is driven.
    """
    return checked(Run(device, implementation, feeds, drive), reference, laws or {})


def checked(run: Run, reference: Reference | None, laws: Mapping[str, Law]) -> Outcome:
    """The whole check of a run, from its beginning again where the device wants to look more closely."""
    while True:
        try:
            return _outcome(run, reference, laws)
        except LookAgainError:
            run.eager.clear()
            run.replays.clear()


def _outcome(run: Run, reference: Reference | None, laws: Mapping[str, Law]) -> Outcome:
    try:
        if isinstance(run.implementation, Runner):
            _eager(run)
            drive_runner(run)
        else:
            _through_graphs(run, reference)
        if reference is not None:
            for step, seen in enumerate(run.eager):
                _compare_with_reference(run, reference, step, seen)
        _check_laws(run, laws)
    except Fault as fault:
        return fault.outcome
    return EQUIVALENT


def _through_graphs(run: Run, reference: Reference | None) -> None:
    static = run.buffers(run.feeds[0])
    graphs: list[Graph | SecondGraph] = []
    try:
        if run.schedule.is_cold:
            graph, left = _capture_cold(run, static)
            graphs.append(graph)
            _eager(run)
            _warm_up(run, run.buffers(run.feeds[0]), reference)
        else:
            _eager(run)
            _warm_up(run, static, reference)
            beside = SecondGraph.first_of(run)
            if beside is not None:
                graphs.append(beside)
            graph, left = _capture(run, static)
            graphs.append(graph)
        _compare_host_buffers(run, left)
        beside = SecondGraph.of(run, graphs)
        happen_between(run)
        _replay(run, static, graph, beside)
    finally:
        for each in graphs:
            each.close()


def _eager(run: Run) -> None:
    is_relaid = run.schedule.eager_layout == "contiguous"
    for step, feed in enumerate(run.feeds):
        given = contiguous(feed) if is_relaid else feed
        buffers = run.buffers(given)
        tracer = run.tracer()
        try:
            result = run.device.eager(run.eager_body(given, buffers), SEED + step, tracer)
        except RAISED as error:
            raise Fault(raised(run, Verdict.EAGER_ERROR, type(error).__name__, error)) from error
        seen = observe(run.device, result, buffers)
        if run.traces is not None and tracer is not None:
            run.traces.add_eager(step, tracer, result)
        run.eager.append(laid_out_as(feed, seen) if is_relaid else seen)
        for name, buffer in buffers.items():
            if not buffer.guard_intact(seen.buffers[name]):
                before = run.device.buffer(argument(given, name)).snapshot()
                mismatch = Mismatch("eager", f"buffer {name}", "before", "after", before, seen.buffers[name])
                raise Fault(divergence(Cause.OUT_OF_BOUNDS, mismatch))


def _warm_up(run: Run, static: Mapping[str, Buffer], reference: Reference | None) -> None:
    """Eager in the static buffers: what every serving engine does before it captures, some of them more than once."""
    feed = run.feeds[0]
    body = run.eager_body(feed, static)
    first: Observed | None = None
    for number in range(max(1, run.schedule.warm_ups)):
        try:
            result = run.device.warm_up(body, SEED)
        except RAISED as error:
            raise Fault(raised(run, Verdict.EAGER_ERROR, type(error).__name__, error)) from error
        again = observe(run.device, result, static)
        if first is None:
            first = again
            if not same(run.eager[0], again):
                _disagrees(run, again, reference)
        elif not run.has_state and not same(first, again):
            names = ("warm-up 1", f"warm-up {number + 1}")
            mismatch = first_mismatch(first, again, "warm-up without new inputs", names)
            assert mismatch is not None
            raise Fault(divergence(Cause.NOT_IDEMPOTENT, mismatch))
    fill(feed, static)


def _disagrees(run: Run, again: Observed, reference: Reference | None) -> None:
    """Eager that disagrees with itself on one set of inputs; on the inputs in another layout, it is blind to that."""
    if run.schedule.eager_layout == "contiguous":
        if reference is not None:
            _compare_with_reference(run, reference, 0, run.eager[0])
            _compare_with_reference(run, reference, 0, again)
        mismatch = first_mismatch(run.eager[0], again, "eager", ("contiguous", "views"))
        assert mismatch is not None
        raise Fault(divergence(Cause.VALUES, mismatch))
    mismatch = first_mismatch(run.eager[0], again, "eager, the same inputs twice", ("first", "second"))
    raise Fault(Outcome(Verdict.NONDETERMINISTIC, None, "eager disagrees with itself on the same inputs", mismatch=mismatch))


def _capture(run: Run, static: Mapping[str, Buffer]) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph, and what capturing left in host buffers."""
    feed = run.feeds[0]
    graph = run.capture(feed, static, run.tracer())
    spaces = spaces_of(feed)
    return graph, {name: buffer.snapshot() for name, buffer in static.items() if spaces[name] is not Space.DEVICE}


def _capture_cold(run: Run, static: Mapping[str, Buffer]) -> tuple[Graph, dict[str, np.ndarray]]:
    try:
        return _capture(run, static)
    except Fault:
        _eager(run)  # what eager raises as well is eager's
        raise


def _compare_host_buffers(run: Run, left: Mapping[str, np.ndarray]) -> None:
    """What capture did to host buffers must be what eager did to them."""
    for name, after in left.items():
        expected = run.eager[0].buffers[name]
        if not bool(np.array_equal(after, expected)):
            mismatch = Mismatch("capture", f"buffer {name}", "eager", "capture", expected, after)
            raise Fault(divergence(Cause.HOST_STATE, mismatch))


def _replay(run: Run, static: Mapping[str, Buffer], graph: Graph, beside: SecondGraph | None) -> None:
    order = run.order
    expected = _timeline(run, order)
    differs = False
    for position, step in enumerate(order):
        if run.schedule.eager_between and position:
            run.eagerly(run.feeds[(step + 1) % len(run.feeds)])
        fill(run.feeds[step], static, keep_state=True)
        tracer = run.tracer()
        seen = run.replay(graph, run.feeds[step], static, SEED + step, tracer)
        run.replays.append(Replayed(step, seen))
        agrees = same(expected[position], seen)
        differs = differs or not agrees
        if run.traces is not None and tracer is not None:
            run.traces.add_replay(step, tracer, graph.result, agrees)
        if beside is not None:
            beside.replay()
            again = observe(run.device, graph.result, static)
            if agrees and not same(seen, again):
                where = f"replay {position + 1}, held while the other graph ran"
                mismatch = first_mismatch(seen, again, where, ("before", "after"))
                assert mismatch is not None
                raise Fault(divergence(Cause.ALIASED_OUTPUT, mismatch))
    if differs:
        outcome = first_divergence(
            run.feeds[0], expected, run.replays, lambda number, step: f"replay {number} ({describe_step(step)})"
        )
        assert outcome is not None, "a replay differs, and no observable does"
        raise Fault(outcome)
    if beside is not None:
        beside.compare()


def _timeline(run: Run, order: Sequence[int]) -> list[Observed]:
    """What each replay must give: eager on the same inputs; for an op with state, eager as often before on the same state."""
    if not run.has_state:
        return [run.eager[step] for step in order]
    buffers = run.buffers(run.feeds[order[0]])
    expected: list[Observed] = []
    for step in order:
        fill(run.feeds[step], buffers, keep_state=bool(expected))
        expected.append(run.eagerly(run.feeds[step], SEED + step, buffers))
    return expected


def _compare_with_reference(run: Run, reference: Reference, step: int, seen: Observed) -> None:
    for mismatch in differences(run, reference, step, seen):
        message = f"{mismatch.path} is not what the reference gives"
        raise Fault(Outcome(Verdict.REFERENCE_MISMATCH, None, message, mismatch=mismatch))


def differences(run: Run, reference: Reference, step: int, seen: Observed) -> Iterator[Mismatch]:
    """Where an eager answer is not the reference's, output by output."""
    arrays = {name: value.array.copy() if isinstance(value, Argument) else value for name, value in run.feeds[step].items()}
    expected = outputs_of(run.device, reference(**arrays))
    for path, leaf in expected.items():
        got = seen.outputs.get(path)
        kind = leaf.dtype.removeprefix("numpy.")
        same_kind = got is not None and kind == got.dtype.removeprefix("torch.")
        if got is not None and same_kind and same_values(leaf.array, got.array):
            continue
        left: np.ndarray | str = leaf.array
        actual: np.ndarray | str = "nothing" if got is None else got.array
        if got is not None and not same_kind:
            left, actual = kind, got.dtype.removeprefix("torch.")
        yield Mismatch(f"eager ({describe_step(step)})", path, "reference", "eager", left, actual)


def _check_laws(run: Run, laws: Mapping[str, Law]) -> None:
    if not laws:
        return
    feed = run.feeds[-1]
    inputs = {name: value.array.copy() if isinstance(value, Argument) else value for name, value in feed.items()}

    def answer(changed: Inputs) -> Any:
        """Eager on other inputs; arrays keep the layout and the space of the argument that they stand for."""
        other = {name: _like(feed.get(name), value) for name, value in changed.items()}
        result = run.device.eager(run.eager_body(other, run.buffers(other)), SEED, None)
        return to_numpy(result, run.device.read)

    outputs = answer(inputs)
    for name, law in laws.items():
        try:
            broken = law(LawCall(inputs, outputs, answer))
        except RAISED as error:
            raise Fault(raised(run, Verdict.INVARIANT, name, error)) from error
        if broken is not None:
            raise Fault(Outcome(Verdict.INVARIANT, name, broken))


def _like(argument: object, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return replace(argument, array=value) if isinstance(argument, Argument) else Argument(value)
