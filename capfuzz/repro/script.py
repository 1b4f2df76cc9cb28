"""A script that shows one finding: the implementation's source, the minimal case's inputs, and what the check does with them.

It needs PyTorch and a GPU, or with `sim` capfuzz and none. It prints eager beside replay (or what was expected beside eager),
the verdict last, and ends with 1 where the fault shows and with 0 where it does not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from capfuzz.corpus import Entry
from capfuzz.differential import SIMPLEST, Cause, Feed, Mismatch, Outcome, Runner, Verdict, callables_of
from capfuzz.repro.driver import EVERYTHING, Driver
from capfuzz.repro.expected import by_reference, by_the_shipped_op, leaves, watched
from capfuzz.repro.graphs import Graphs
from capfuzz.repro.literals import literal
from capfuzz.repro.reach import Arcs
from capfuzz.repro.runners import Runners
from capfuzz.repro.source import CannotStandAloneError, Source, standalone
from capfuzz.targets import Case, Subject

_OF_EAGER = (Verdict.REFERENCE_MISMATCH, Verdict.INVARIANT, Verdict.NONDETERMINISTIC, Verdict.EAGER_ERROR)


class NoScriptError(ValueError):
    """There is no script for this entry; the text says why."""


def script(entry: Entry, subject: Subject, header: str, sim: bool = False) -> str:
    """The script of an entry whose implementation is `subject`; `header` is its first line. Raises `NoScriptError`."""
    is_of_eager = entry.verdict in _OF_EAGER or entry.cause == Cause.OUT_OF_BOUNDS
    case = entry.case.with_schedule(SIMPLEST) if is_of_eager else entry.case
    outcome, arcs = _watched(entry, subject, case)
    if is_of_eager and entry.case.schedule != SIMPLEST and outcome is None:
        needs = ", ".join(entry.case.schedule.needs())
        raise NoScriptError(
            f"the fault is one of an eager call that needs {needs}; there is no script for that, only `capfuzz replay`"
        )
    source, notes = _source(subject, arcs)
    driver = _driver(entry, subject, case, source, None if outcome is None else outcome.mismatch)
    driver = replace(driver, sim=sim)
    on_sim = ["device = capfuzz.sim()\ndevice.__enter__()  # from here on there is a GPU"] if sim else []
    imports = _imports([*source.imports, *driver.imports])
    return "\n\n".join(["\n".join([header, *notes, *imports]), *on_sim, *_blocks(source.statements), *driver.text()]) + "\n"


def _watched(entry: Entry, subject: Subject, case: Case) -> tuple[Outcome | None, Arcs]:
    """What the case shows, and the branches that it takes; nothing where the simulated device does not show the fault."""
    if entry.verdict in (Verdict.CRASH, Verdict.HANG):
        return None, set()
    outcome, arcs = watched(subject, case)
    return (outcome, arcs) if outcome.label == entry.label else (None, set())


def _source(subject: Subject, arcs: Arcs) -> tuple[Source, list[str]]:
    """The implementation's source, and what a reader has to know of it."""
    try:
        source = standalone(callables_of(subject.function), arcs)
    except CannotStandAloneError as error:
        kind, _, spec = subject.label.partition(":")
        module, _, path = spec.partition(":")
        if kind != "user":
            raise NoScriptError(str(error)) from error
        name = path.rpartition(".")[2]
        line = f"from {module} import {path}" if name == path else f"import {module}\n\n{name} = {module}.{path}"
        return Source([], [line], [name], set()), [f"# Run it where {module} can be imported: {error}."]
    needed = sorted(source.packages - {"numpy"})
    return source, [f"# It needs {', '.join(needed)} too."] if needed else []


def _driver(entry: Entry, subject: Subject, case: Case, source: Source, mismatch: Mismatch | None) -> Driver:
    target = subject.target
    feeds: Sequence[Feed] = list(target.feeds(case))
    look, expected, kind = EVERYTHING, [""], Driver
    if entry.verdict is Verdict.REFERENCE_MISMATCH:
        look, expected = _against_the_reference(by_reference(target, feeds), mismatch)
    elif entry.verdict is Verdict.INVARIANT:
        found = by_the_shipped_op(subject, feeds, str(entry.cause))
        if found is None:
            raise NoScriptError(
                f"it answers the law {entry.cause} as the shipped implementation does: nothing says what is right"
            )
        feeds, look, expected = [found[0]], _values(found[1], found[2]), [_expression(found[2])]
    elif mismatch is not None:
        look = _looked_at(mismatch, by_reference(target, feeds[:1])[0] if target.reference is not None else None)
    if entry.verdict not in _OF_EAGER and entry.cause != Cause.OUT_OF_BOUNDS:
        kind = Runners if isinstance(subject.function, Runner) else Graphs
    where = "" if mismatch is None else mismatch.where
    drive = target.drive(case)
    return kind(feeds, source, entry.verdict, entry.cause, entry.message, False, look, where, expected, drive)


# -- what is looked at -------------------------------------------------------------------------------------------------


def _looked_at(mismatch: Mismatch, answer: Any) -> str:
    """What differs, as an expression; `answer` has the structure of what the implementation returns, where that is known."""
    if isinstance(mismatch.expected, str) or isinstance(mismatch.actual, str):
        return EVERYTHING
    if mismatch.path.startswith("buffer "):
        return f'given["{mismatch.path.removeprefix("buffer ")}"].tolist()'
    known = leaves(answer) if answer is not None else {mismatch.path: mismatch.actual} if mismatch.actual.ndim else {}
    return _values(mismatch.path, known[mismatch.path]) if mismatch.path in known else EVERYTHING


def _against_the_reference(answers: Sequence[Any], mismatch: Mismatch | None) -> tuple[str, list[str]]:
    """What is wrong, as an expression, and what it should be in each step; all outputs, where nobody knows which."""
    every = [leaves(answer) for answer in answers]
    if mismatch is None:
        look = ", ".join(_values(path, value) for path, value in every[0].items())
        return f"[{look}]", [f"[{', '.join(map(_expression, answer.values()))}]" for answer in every]
    path = mismatch.path
    if isinstance(mismatch.actual, str) and mismatch.actual == "nothing":
        outer, _, key = path.rpartition("[")
        there = f"len({outer}) > {key[:-1]}" if key[:-1].isdigit() else f"{key[:-1]} in {outer}"
        return there.replace("'", '"'), ["True"] * len(every)
    if isinstance(mismatch.expected, str):  # the dtype
        return f"str({path}.dtype)".replace("'", '"'), [f'"torch.{answer[path].dtype}"' for answer in every]
    return _values(path, every[0][path]), [_expression(answer[path]) for answer in every]


def _values(path: str, value: Any) -> str:
    """The expression at `path` as Python values that can be compared: where NaN may occur, as text."""
    path = path.replace("'", '"')
    if not isinstance(value, np.ndarray):
        return path
    return f"str({path}.tolist())" if value.dtype.kind in "fc" else f"{path}.tolist()"


def _expression(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return literal(value)
    return literal(str(value.tolist())) if value.dtype.kind in "fc" else literal(value.tolist())


# -- text --------------------------------------------------------------------------------------------------------------


def _blocks(statements: Sequence[str]) -> list[str]:
    """Constants share a block; every other statement is one of its own."""
    blocks: list[str] = []
    was_short = False
    for statement in statements:
        is_short = "\n" not in statement
        if was_short and is_short:
            blocks[-1] += f"\n{statement}"
        else:
            blocks.append(statement)
        was_short = is_short
    return blocks


def _imports(lines: Sequence[str]) -> list[str]:
    """The standard library first."""

    def order(line: str) -> tuple[bool, bool, str]:
        return line.split()[1].partition(".")[0] not in sys.stdlib_module_names, line.startswith("from "), line

    return sorted(set(lines), key=order)
