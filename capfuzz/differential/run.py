"""The state of one check, and what its steps share: eager calls, buffers and their contents, faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

from capfuzz.devices.base import Buffer, Device, Graph
from capfuzz.devices.errors import DanglingBufferError, first_line, node_of, root_cause, rule_of
from capfuzz.devices.layout import CONTIGUOUS, Argument, HostMemory, Space
from capfuzz.devices.trace import blamed, code_of
from capfuzz.devices.tracer import Tracer
from capfuzz.differential.blame import ImplementationTracer, Traces
from capfuzz.differential.classify import Replayed, cause_of, first_mismatch
from capfuzz.differential.observe import Observed, observe
from capfuzz.differential.runner import Runner
from capfuzz.differential.schedule import SIMPLEST, Schedule
from capfuzz.differential.two_part import Mode, TwoPart
from capfuzz.differential.verdict import Blame, Cause, Mismatch, Outcome, Verdict

Feed = Mapping[str, Argument | int | float | bool | str | None]
Implementation = Callable[..., Any] | TwoPart | Runner
SEED = 11
# What an implementation may raise: `sys.exit()` in it is its fault, Ctrl-C is not.
RAISED = (Exception, SystemExit)


class Fault(Exception):
    """Ends the check with an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


@dataclass(frozen=True)
class Drive:
    """A schedule with what it needs: the inputs of the other graph (the last feed's, if None), and of the larger eager run."""

    schedule: Schedule = SIMPLEST
    second: Feed | None = None
    larger: Feed | None = None


SIMPLY = Drive()


@dataclass
class Run:
    """The state of one check; `traces` is None unless the check is repeated to find the guilty op."""

    device: Device
    implementation: Implementation
    feeds: Sequence[Feed]
    drive: Drive = SIMPLY
    traces: Traces | None = None
    eager: list[Observed] = field(default_factory=list)
    replays: list[Replayed] = field(default_factory=list)

    @property
    def schedule(self) -> Schedule:
        return self.drive.schedule

    def tracer(self) -> ImplementationTracer | None:
        return None if self.traces is None else ImplementationTracer(self.codes)

    def buffers(self, feed: Feed) -> dict[str, Buffer]:
        return {name: self.device.buffer(value) for name, value in feed.items() if isinstance(value, Argument)}

    def arguments(self, feed: Feed, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
        return {name: buffers[name].tensor if name in buffers else value for name, value in feed.items()}

    def eager_body(self, feed: Feed, buffers: Mapping[str, Buffer]) -> Callable[[], Any]:
        """Eager calls: of an implementation in two parts the first one prepares, and each runs the body."""
        arguments = self.arguments(feed, buffers)
        whole = self.implementation
        if isinstance(whole, Runner):
            return partial(whole.eager, **arguments)
        if not isinstance(whole, TwoPart):
            return partial(whole, **arguments)
        prepared: list[Any] = []

        def call() -> Any:
            if not prepared:
                prepared.append(whole.prepare(Mode.EAGER, **arguments))
            return whole.body(prepared[0], **arguments)

        return call

    def captured_body(self, feed: Feed, buffers: Mapping[str, Buffer]) -> Callable[[], Any]:
        """What is captured; the host's part for it has run."""
        arguments = self.arguments(feed, buffers)
        whole = self.implementation
        assert not isinstance(whole, Runner)
        if not isinstance(whole, TwoPart):
            return partial(whole, **arguments)
        prepared = self.device.eager(partial(whole.prepare, Mode.CAPTURE, **arguments), SEED)
        return partial(whole.body, prepared, **arguments)

    def capture(self, feed: Feed, buffers: Mapping[str, Buffer], tracer: Tracer | None = None) -> Graph:
        """The implementation's graph for these buffers. Raises `Fault`."""
        try:
            return self.device.capture(self.captured_body(feed, buffers), SEED, tracer)
        except RAISED as error:
            raise Fault(raised(self, Verdict.CAPTURE_ERROR, rule_of(error).value, root_cause(error))) from error

    def replay(
        self, graph: Graph, feed: Feed, buffers: Mapping[str, Buffer], seed: int = SEED, tracer: Tracer | None = None
    ) -> Observed:
        """What a replay leaves, behind the host's part for it. Raises `Fault`."""
        try:
            if isinstance(self.implementation, TwoPart):
                prepare = partial(self.implementation.prepare, Mode.REPLAY, **self.arguments(feed, buffers))
                self.device.eager(prepare, seed, tracer)
            graph.replay(seed, tracer)
            return observe(self.device, graph.result, buffers)
        except DanglingBufferError as error:
            raise Fault(dangling(error)) from error
        except RAISED as error:
            raise Fault(raised(self, Verdict.REPLAY_ERROR, type(error).__name__, error)) from error

    def eagerly(self, feed: Feed, seed: int = SEED, buffers: Mapping[str, Buffer] | None = None) -> Observed:
        """What an eager call leaves, on fresh buffers unless some are given. Raises `Fault`."""
        where = self.buffers(feed) if buffers is None else buffers
        try:
            return observe(self.device, self.device.eager(self.eager_body(feed, where), seed), where)
        except RAISED as error:
            raise Fault(raised(self, Verdict.EAGER_ERROR, type(error).__name__, error)) from error

    @property
    def order(self) -> list[int]:
        """The steps of the replays: each, the last one again, and the first one again."""
        steps = len(self.feeds)
        return [*range(steps), steps - 1, 0] if steps > 1 else [0, 0]

    @property
    def has_state(self) -> bool:
        return has_state(self.feeds[0])

    @property
    def codes(self) -> tuple[CodeType, ...]:
        """The functions in which a line is the implementation's own; a runner's calls may be anywhere."""
        whole = self.implementation
        functions = [whole.eager] if isinstance(whole, Runner) else callables_of(whole)
        return tuple(code for code in map(code_of, functions) if code is not None)

    @property
    def code(self) -> CodeType | None:
        whole = self.implementation
        if isinstance(whole, Runner):
            return code_of(whole.make)
        return code_of(whole.body if isinstance(whole, TwoPart) else whole)


def callables_of(implementation: Implementation) -> list[Callable[..., Any]]:
    """The functions that an implementation is made of."""
    if isinstance(implementation, Runner):
        return [implementation.eager, implementation.make]
    if isinstance(implementation, TwoPart):
        return [implementation.prepare, implementation.body]
    return [implementation]


def has_state(feed: Feed) -> bool:
    return any(isinstance(value, Argument) and value.is_state for value in feed.values())


def argument(feed: Feed, name: str) -> Argument:
    value = feed[name]
    assert isinstance(value, Argument)
    return value


def fill(feed: Feed, buffers: Mapping[str, Buffer], keep_state: bool = False) -> None:
    for name, buffer in buffers.items():
        if not (keep_state and argument(feed, name).is_state):
            buffer.write(argument(feed, name).array)


def contiguous(feed: Feed) -> Feed:
    """The same arguments, each in memory of its own without gaps."""
    return {name: replace(value, layout=CONTIGUOUS) if isinstance(value, Argument) else value for name, value in feed.items()}


def laid_out_as(feed: Feed, seen: Observed) -> Observed:
    """What a run on contiguous arguments left, as it would lie in the layouts of `feed`."""
    buffers = {}
    for name, base in seen.buffers.items():
        like = argument(feed, name)
        array = base[: like.array.size].reshape(like.array.shape)
        buffers[name] = HostMemory(replace(like, array=array)).base
    return Observed(seen.outputs, buffers)


def spaces_of(feed: Feed) -> dict[str, Space]:
    return {name: value.space for name, value in feed.items() if isinstance(value, Argument)}


def divergence(cause: Cause, mismatch: Mismatch) -> Outcome:
    return Outcome(Verdict.DIVERGENCE, cause.value, f"{mismatch.path} differs at {mismatch.where}", mismatch=mismatch)


def dangling(error: DanglingBufferError) -> Outcome:
    return Outcome(Verdict.DANGLING_BUFFER, None, first_line(error), Blame(error.location, error.op))


def first_divergence(
    feed: Feed,
    expected: Sequence[Observed],
    replays: Sequence[Replayed],
    where: Callable[[int, int], str],
    names: tuple[str, str] = ("eager", "replay"),
) -> Outcome | None:
    """The first replay that is not what eager gave, with the cause; `where` is asked with its number and its step."""
    for number, (wanted, replay) in enumerate(zip(expected, replays, strict=True), 1):
        captured = expected[0] if replay.step else None
        mismatch = first_mismatch(wanted, replay.seen, where(number, replay.step), names, captured)
        if mismatch is not None:
            cause = cause_of(expected, expected[0], replays, spaces_of(feed), mismatch, has_state(feed))
            return divergence(cause, mismatch)
    return None


def raised(run: Run, verdict: Verdict, cause: str, error: BaseException) -> Outcome:
    op, location = node_of(error)
    return Outcome(verdict, cause, first_line(error), Blame(location or blamed(error), op or run.device.failed_op(error)))
