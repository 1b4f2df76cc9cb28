"""Looking after a corpus: does a file's name say what is in it, which of two cases is smaller, entries of older versions."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from capfuzz.corpus.entry import SCHEMA_VERSION, Entry
from capfuzz.findings import fault_name
from capfuzz.targets import Case

_DIGEST = re.compile(r"[0-9a-f]{8}")


def recorded_signature(entry: Entry) -> str:
    """The signature of the fault as the entry tells it; the file is named so."""
    line = entry.blame
    return fault_name(entry.target, entry.verdict, entry.cause, line, None if line is None else line.op)


def misnamed(path: Path, entry: Entry) -> str | None:
    """What is wrong with the place of an entry, or None: it belongs in `<target>/<signature>.json`.

    Where no line was blamed an entry does not say which op was, and any signature of its verdict and cause will do.
    """
    directory = Path(path).absolute().parent.name
    if directory != entry.target:
        return f"is an entry of {entry.target}: it belongs in a directory {entry.target}, not {directory}"
    name = recorded_signature(entry)
    if path.stem == name:
        return None
    kind, _, digest = path.stem.rpartition("-")
    if entry.blame is None and kind == name.rpartition("-")[0] and _DIGEST.fullmatch(digest):
        return None
    return f"holds the fault {name}: it belongs in {name}.json"


def size_of(case: Case) -> tuple[int, int, int, int]:
    """How large a case is, for two of one target to be compared: what its schedule needs, steps, rows, characters."""
    rows = sum(len(value) for step in case.steps for value in step.values() if isinstance(value, list))
    return len(case.schedule.needs()), len(case.steps), rows, len(msgspec.json.encode(case))


def upgraded(entry: Entry) -> Entry:
    """The entry in the newest schema. `load` has read what the older ones say."""
    return msgspec.structs.replace(entry, schema=SCHEMA_VERSION)
