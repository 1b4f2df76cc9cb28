"""Laws, state, and implementations in two parts: what is right passes, and each way to be wrong is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from capfuzz.devices import Device
from capfuzz.devices.layout import Argument, Space
from capfuzz.differential import LawCall, Mode, Outcome, TwoPart, check, explain

A = np.array([1, 4, 0, 5], np.int32)
B = np.array([2, 2, 7, 1], np.int32)


def steps(**more: Argument) -> list[dict[str, Argument]]:
    return [{"x": Argument(array), **more} for array in (A, B)]


def run(device: Device, body: Any, feeds: Any, laws: Any = None) -> Outcome:
    outcome = check(device, body, feeds, None, laws)
    return explain(device, body, feeds, None, outcome, laws)


# -- laws --------------------------------------------------------------------------------------------------------------


def sums_to_the_last(call: LawCall) -> str | None:
    """The scan ends with the sum."""
    return None if call.outputs[-1] == call.inputs["x"].sum() else f"ends with {call.outputs[-1]}"


def doubles_with_its_input(call: LawCall) -> str | None:
    """Twice the input, twice the answer."""
    twice = call.answer({"x": call.inputs["x"] * 2})
    return None if np.array_equal(twice, call.outputs * 2) else "not linear"


LAWS = {"sums_to_the_last": sums_to_the_last, "doubles_with_its_input": doubles_with_its_input}


def test_laws_that_hold(device: Device) -> None:
    assert run(device, lambda x: torch.cumsum(x, 0), steps(), LAWS).label == "equivalent"


def test_a_law_that_is_broken_is_its_own_verdict_with_a_line(device: Device) -> None:
    def exclusive(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0) - x

    outcome = run(device, exclusive, steps(), LAWS)
    assert outcome.label == "invariant:sums_to_the_last"
    assert outcome.blame.location is not None
    assert outcome.blame.location.text == "return torch.cumsum(x, 0) - x"


def test_a_law_may_ask_for_other_answers(device: Device) -> None:
    outcome = run(device, lambda x: torch.cumsum(x, 0).clamp(max=15), steps(), LAWS)
    assert outcome.label == "invariant:doubles_with_its_input"


def test_a_divergence_comes_before_a_broken_law(device: Device) -> None:
    def reads_value(x: torch.Tensor) -> torch.Tensor:
        return x * int(x.sum())

    assert run(device, reads_value, steps(), LAWS).label == "capture_error:synchronization"


# -- state -------------------------------------------------------------------------------------------------------------

COUNTER = Argument(np.zeros(4, np.int32), is_state=True)


def test_state_advances_as_eager_advances_it(device: Device) -> None:
    def counts(x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        counter.add_(x)
        return counter * 2

    assert run(device, counts, steps(counter=COUNTER)).label == "equivalent"


def test_state_that_only_eager_advances(device: Device) -> None:
    def forgets(x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            counter.add_(x)
        return counter * 2

    assert run(device, forgets, steps(counter=COUNTER)).label.startswith("divergence:")


def test_state_that_a_replay_advances_twice(device: Device) -> None:
    def twice(x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        counter.add_(x)
        if torch.cuda.is_current_stream_capturing():
            counter.add_(x)
        return counter * 2

    assert run(device, twice, steps(counter=COUNTER)).label.startswith("divergence:")


# -- two parts ---------------------------------------------------------------------------------------------------------


def host_steps() -> list[dict[str, Argument]]:
    staged = Argument(np.zeros(4, np.int32), space=Space.PINNED)
    return [{"x": Argument(array), "host": Argument(array * 3, space=Space.HOST), "staged": staged} for array in (A, B)]


def stages(mode: Mode, x: torch.Tensor, host: torch.Tensor, staged: torch.Tensor) -> torch.Tensor:
    """The host's part: fills the pinned buffer that the graph copies from."""
    staged.copy_(host)
    return staged


def adds(prepared: torch.Tensor, x: torch.Tensor, host: torch.Tensor, staged: torch.Tensor) -> torch.Tensor:
    return x + prepared.to(x.device, non_blocking=True)


def test_the_host_part_runs_before_each_replay(device: Device) -> None:
    assert run(device, TwoPart(stages, adds), host_steps()).label == "equivalent"


def test_a_host_part_that_runs_for_capture_only_is_stale(device: Device) -> None:
    def once(mode: Mode, x: torch.Tensor, host: torch.Tensor, staged: torch.Tensor) -> torch.Tensor:
        if mode is not Mode.REPLAY:
            staged.copy_(host)
        return staged

    assert run(device, TwoPart(once, adds), host_steps()).is_fault


def test_a_host_part_that_binds_a_new_buffer_is_seen(device: Device) -> None:
    """The graph reads the buffer that it was captured with, which nobody keeps."""

    def rebinds(mode: Mode, x: torch.Tensor, host: torch.Tensor, staged: torch.Tensor) -> torch.Tensor:
        return host.clone().pin_memory()

    outcome = run(device, TwoPart(rebinds, adds), host_steps())
    assert outcome.label in ("dangling_buffer", "divergence:stale_host_value", "divergence:values")


def test_another_path_for_capture_is_taken(device: Device) -> None:
    seen: list[Mode] = []

    def prepares(mode: Mode, x: torch.Tensor) -> None:
        seen.append(mode)

    def body(prepared: None, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert run(device, TwoPart(prepares, body), steps()).label == "equivalent"
    assert seen == [Mode.EAGER] * 3 + [Mode.CAPTURE] + [Mode.REPLAY] * 4
