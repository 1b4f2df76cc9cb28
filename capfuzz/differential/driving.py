"""What a schedule adds to the plain order: another graph, what happens between capture and replay, an engine's own runner."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

from capfuzz.devices.base import Buffer, Graph
from capfuzz.devices.errors import DanglingBufferError, Rule, root_cause, rule_of
from capfuzz.differential.classify import Replayed, describe_step, first_mismatch
from capfuzz.differential.observe import Observed, observe, same
from capfuzz.differential.run import (
    RAISED,
    SEED,
    Fault,
    Feed,
    Run,
    argument,
    dangling,
    divergence,
    fill,
    first_divergence,
    has_state,
    raised,
)
from capfuzz.differential.runner import Runner
from capfuzz.differential.verdict import Cause, Outcome, Verdict


def happen_between(run: Run) -> None:
    """Between capture and replay a server goes on: it frees, collects and allocates, and a larger batch may run eagerly."""
    if run.schedule.churns:
        gc.collect()
        run.device.churn()
    if run.schedule.grows and run.drive.larger is not None:
        run.eagerly(run.drive.larger)


class SecondGraph:
    """Another graph of the same implementation in the same pool."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.feed: Feed = run.feeds[-1] if run.drive.second is None else run.drive.second
        self._buffers: dict[str, Buffer] = run.buffers(self.feed)
        self._expected: list[Observed] = []
        self._seen: list[Replayed] = []
        self._eager_buffers = run.buffers(self.feed)
        run.eagerly(self.feed)  # an engine warms up for each of its graphs
        self._graph: Graph = run.capture(self.feed, self._buffers)

    @classmethod
    def first_of(cls, run: Run) -> SecondGraph | None:
        """The other graph where it is captured first and is gone before the replays."""
        return cls(run) if run.schedule.second != "none" and run.schedule.second_dies else None

    @classmethod
    def of(cls, run: Run, graphs: list[Graph | SecondGraph]) -> SecondGraph | None:
        """The other graph that is replayed in turn; one that was captured first dies here."""
        if run.schedule.second == "none":
            return None
        if run.schedule.second_dies and not run.schedule.is_cold:
            graphs.pop(0).close()
            return None
        beside = cls(run)
        graphs.append(beside)
        return beside

    def replay(self) -> None:
        """One replay with its own inputs, and eager beside it."""
        run = self._run
        keeps = bool(self._seen)
        if keeps and has_state(self.feed):
            fill(self.feed, self._eager_buffers, keep_state=True)
        if not keeps or has_state(self.feed):
            self._expected.append(run.eagerly(self.feed, SEED, self._eager_buffers))
        else:
            self._expected.append(self._expected[-1])
        fill(self.feed, self._buffers, keep_state=True)
        self._seen.append(Replayed(0, run.replay(self._graph, self.feed, self._buffers, tracer=run.tracer())))

    def compare(self) -> None:
        """Raises `Fault` where one of its replays is not what eager gave."""
        outcome = first_divergence(
            self.feed, self._expected, self._seen, lambda number, _: f"replay {number} of the other graph"
        )
        if outcome is not None:
            raise Fault(outcome)

    def close(self) -> None:
        self._graph.close()


def drive_runner(run: Run) -> None:
    """Calls a runner with the inputs of every step, and compares each answer with eager's; and those still held."""
    runner = run.implementation
    assert isinstance(runner, Runner)
    order = run.order
    calls = _Calls(run, _made(run, runner))
    beside = None if run.schedule.second == "none" else _Calls(run, calls.call, run.drive.second or run.feeds[-1])
    for position, step in enumerate(order):
        if position == 1:
            happen_between(run)
        if run.schedule.eager_between and position:
            run.eagerly(run.feeds[(step + 1) % len(run.feeds)])
        calls.step(run.feeds[step], step)
        if beside is not None:
            beside.step(beside.feed, 0)
            calls.compare_held()
    calls.compare()
    if beside is not None:
        beside.compare()


def _made(run: Run, runner: Runner) -> Any:
    try:
        return run.device.eager(runner.make, SEED)
    except RAISED as error:
        raise Fault(raised(run, Verdict.EAGER_ERROR, type(error).__name__, error)) from error


class _Calls:
    """Calls of one runner with eager beside them: each in new buffers, but for state."""

    def __init__(self, run: Run, call: Any, feed: Feed | None = None) -> None:
        self._run = run
        self.call = call
        self.feed: Feed = run.feeds[0] if feed is None else feed
        self._is_other = feed is not None
        self._state: dict[str, Buffer] = {}
        self._eager_state: dict[str, Buffer] = {}
        self._expected: list[Observed] = []
        self._seen: list[Replayed] = []
        self._held: list[tuple[Any, dict[str, Buffer], Observed]] = []

    def step(self, feed: Feed, step: int) -> None:
        run = self._run
        if has_state(feed) or self._is_other:
            self._expected.append(run.eagerly(feed, SEED + step, self._buffers(feed, self._eager_state)))
        else:
            self._expected.append(run.eager[step])
        buffers = self._buffers(feed, self._state)
        try:
            result = run.device.eager(partial(self.call, **run.arguments(feed, buffers)), SEED + step)
            seen = observe(run.device, result, buffers)
        except RAISED as error:
            raise Fault(_outcome_of(run, error, is_first=not self._seen)) from error
        self._seen.append(Replayed(step, seen))
        if same(self._expected[-1], seen):
            self.compare_held()
            self._held = [(result, buffers, seen)]

    def _buffers(self, feed: Feed, state: dict[str, Buffer]) -> dict[str, Buffer]:
        """New buffers, and the same ones as before for state."""
        new = {**self._run.buffers({n: v for n, v in feed.items() if n not in state}), **state}
        state.update({name: buffer for name, buffer in new.items() if argument(feed, name).is_state})
        return new

    def compare_held(self) -> None:
        """Raises `Fault` where the last answer is no longer what it was. The caller holds it until it has called again."""
        runner = self._run.implementation
        assert isinstance(runner, Runner)
        if not runner.may_hold:
            return
        for result, _, seen in self._held:
            again = Observed(observe(self._run.device, result, {}).outputs, seen.buffers)
            if not same(seen, again):
                where = f"the answer of call {len(self._seen) - 1}, held over the next call"
                mismatch = first_mismatch(seen, again, where, ("before", "after"))
                assert mismatch is not None
                raise Fault(divergence(Cause.ALIASED_OUTPUT, mismatch))

    def compare(self) -> None:
        """Raises `Fault` where an answer is not eager's."""

        def where(number: int, step: int) -> str:
            return f"call {number} ({'other inputs' if self._is_other else describe_step(step)})"

        outcome = first_divergence(self.feed, self._expected, self._seen, where, ("eager", "runner"))
        if outcome is not None:
            raise Fault(outcome)


def _outcome_of(run: Run, error: BaseException, is_first: bool) -> Outcome:
    """What a runner raises: it captures in its first call, and perhaps in later ones."""
    if isinstance(error, DanglingBufferError):
        return dangling(error)
    rule = rule_of(error)
    if is_first or rule is not Rule.HOST_EXCEPTION:
        return raised(run, Verdict.CAPTURE_ERROR, rule.value, root_cause(error))
    return raised(run, Verdict.REPLAY_ERROR, type(error).__name__, error)
