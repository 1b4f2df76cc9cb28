"""Texts that several reports show."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from capfuzz.targets import Case, Target

# No XML file may hold these, in whatever form; lone surrogates (from file names) cannot be encoded at all.
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """A text that every format can hold: messages and file names come from the code under test."""
    return _UNSPEAKABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def case_fields(target: Target, case: Case) -> list[tuple[str, str]]:
    """What makes a case, but for its arrays: the batch, each axis, how many changed inputs, and whatever else a case has."""
    fields = [("batch", str(target.batch(case))), *((name, str(value)) for name, value in case.values.items())]
    fields.append(("changed inputs", str(len(case.steps) - 1)))
    return fields + other_fields(case)


def other_fields(case: Case) -> list[tuple[str, str]]:
    """What a case has besides its axes and its steps, where it is not the simplest: how it is driven."""
    fields = []
    for name in case.__struct_fields__:
        value = msgspec.to_builtins(getattr(case, name)) if name not in ("values", "steps") else None
        if value is not None and value != {}:
            fields.append((name, _plain(value)))
    return fields


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value)


def case_line(target: Target, case: Case) -> str:
    return ", ".join(f"{name} {text}" for name, text in case_fields(target, case))
