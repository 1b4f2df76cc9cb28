"""What is known when a script is made: what the case shows on the simulated device, what a wrong answer should be."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from capfuzz.devices import open_device
from capfuzz.devices.layout import Argument
from capfuzz.differential import Feed, Implementation, LawCall, Outcome, callables_of, check
from capfuzz.differential.laws import Inputs
from capfuzz.repro.reach import Arcs, arcs_of
from capfuzz.targets import Case, Subject, Target


def watched(subject: Subject, case: Case) -> tuple[Outcome, Arcs]:
    """The outcome of a case on the simulated device, and the branches that it takes in its implementation."""
    target, function = subject.target, subject.function
    files = {module.__file__ or "" for name, module in sys.modules.items() if name.startswith("capfuzz.targets.")}
    for part in map(inspect.unwrap, callables_of(function)):
        files |= {part.__code__.co_filename} if inspect.isfunction(part) else set()
        files |= {inspect.getsourcefile(part) or ""} if inspect.isclass(part) else set()
    outcomes: list[Outcome] = []
    with open_device("sim") as device:
        arcs = arcs_of(
            lambda: outcomes.append(
                check(device, function, target.feeds(case), target.reference, target.laws, target.drive(case))
            ),
            files,
        )
    return outcomes[0], arcs


def by_reference(target: Target, feeds: Sequence[Feed]) -> list[Any]:
    """What the reference gives for each step."""
    assert target.reference is not None
    answers = []
    for feed in feeds:
        arrays = {name: value.array.copy() if isinstance(value, Argument) else value for name, value in feed.items()}
        answers.append(target.reference(**arrays))
    return answers


def by_the_shipped_op(subject: Subject, feeds: Sequence[Feed], law: str) -> tuple[Feed, str, Any] | None:
    """The first question of a law that the implementation answers in another way than the shipped one, for which the law holds:
    the inputs, the path of what differs, and what should be there.

    None where they answer alike: the shipped implementation breaks the law too.
    """
    asked = _asked(subject.function, subject.target, feeds, law)
    answered = _answers(subject.target.implementation, feeds, [inputs for inputs, _ in asked])
    for (inputs, answer), right in zip(asked, answered, strict=True):
        gives = leaves(answer)
        for path, value in leaves(right).items():
            if path in gives and not np.array_equal(gives[path], value):
                return {name: _like(feeds[-1].get(name), given) for name, given in inputs.items()}, path, value
    return None


def leaves(value: Any, path: str = "output") -> dict[str, Any]:
    """Arrays and scalars of a nested answer, by the expression that gets them out of it."""
    if isinstance(value, (Mapping, list, tuple)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return {where: leaf for key, item in items for where, leaf in leaves(item, f"{path}[{key!r}]").items()}
    return {path: value}


def _asked(function: Implementation, target: Target, feeds: Sequence[Feed], law: str) -> list[tuple[Inputs, Any]]:
    """The questions of a law with the implementation's answers; first the case itself."""
    asked: list[tuple[Inputs, Any]] = []

    def listen(call: LawCall) -> str | None:
        def answer(inputs: Inputs) -> Any:
            kept = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
            given = call.answer(inputs)
            asked.append((kept, given))
            return given

        asked.append((call.inputs, call.outputs))
        return target.laws[law](LawCall(call.inputs, call.outputs, answer))

    with open_device("sim") as device:
        check(device, function, feeds, None, {law: listen})
    return asked


def _answers(function: Implementation, feeds: Sequence[Feed], questions: Sequence[Inputs]) -> list[Any]:
    answers: list[Any] = []

    def ask(call: LawCall) -> str | None:
        answers.extend(call.answer(inputs) for inputs in questions)
        return None

    with open_device("sim") as device:
        check(device, function, feeds, None, {"ask": ask})
    return answers


def _like(argument: object, value: Any) -> Any:
    """An array in the layout and the space of the argument that it stands for, as the check gives it to the op."""
    if not isinstance(value, np.ndarray):
        return value
    return replace(argument, array=value) if isinstance(argument, Argument) else Argument(value)
