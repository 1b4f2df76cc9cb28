"""A signature is the same for the same fault, and another for another one."""

from __future__ import annotations

import itertools
import linecache
from types import CodeType

import pytest

from capfuzz.devices.trace import Location
from capfuzz.differential import OUT_OF_MEMORY, Blame, Outcome, Verdict
from capfuzz.findings import signature

SCALAR_STORE = "out[0] = 0"


def located(text: str, line: int, file: str) -> Location:
    linecache.cache[file] = (1, None, ["\n"] * (line - 1) + [f"    {text}\n"], file)
    code: CodeType = compile("pass", file, "exec")
    return Location(code, line)


_numbers = itertools.count()


def outcome(text: str = SCALAR_STORE, *, line: int = 3, op: str = "copy_", cause: str = "host_copy") -> Outcome:
    """An outcome whose line is in a file of its own."""
    file = f"ops{next(_numbers)}.py"
    return Outcome(Verdict.CAPTURE_ERROR, cause, "message", Blame(located(text, line, file), op))


FIRST = signature("fold", outcome())


@pytest.mark.parametrize(
    "same",
    [
        outcome(line=30),
        outcome("out[0]  =  0"),
        outcome(op="copy_.default"),
    ],
)
def test_a_moved_or_respaced_line_is_the_same_fault(same: Outcome) -> None:
    assert signature("fold", same) == FIRST


@pytest.mark.parametrize("other", [outcome("out[1] = 0"), outcome(op="fill_"), outcome(cause="synchronization")])
def test_another_line_op_or_cause_is_another_fault(other: Outcome) -> None:
    assert signature("fold", other) != FIRST


def test_another_target_is_another_fault() -> None:
    assert signature("slots", outcome()) != FIRST


def sampled(verdict: Verdict, cause: str | None, text: str) -> str:
    code: CodeType = compile("def f():\n    while True:\n        pass\n", "sampled.py", "exec").co_consts[0]
    linecache.cache["sampled.py"] = (1, None, ["\n", f"    {text}\n"], "sampled.py")
    return signature("fold", Outcome(verdict, cause, "message", Blame(Location(code, 2), None)))


@pytest.mark.parametrize(("verdict", "cause"), [(Verdict.HANG, None), (Verdict.CRASH, OUT_OF_MEMORY)])
def test_the_line_at_which_a_process_was_met_is_a_matter_of_chance(verdict: Verdict, cause: str | None) -> None:
    assert sampled(verdict, cause, "while True:") == sampled(verdict, cause, "pass")
    assert sampled(verdict, cause, "pass") != sampled(Verdict.CRASH, None, "pass")
    assert sampled(Verdict.CRASH, None, "while True:") != sampled(Verdict.CRASH, None, "pass")


def test_the_name_says_what_it_is() -> None:
    assert FIRST.startswith("capture_error-host_copy-")
