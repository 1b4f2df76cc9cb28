"""The schema of a corpus entry, and strict reading of one.

An entry names registered targets and variants, never code to import. Every defect of a file (not JSON, too large, an unknown
field, a wrong type, a value out of range, an unknown target) is one `CorpusError` that names the file and the field.
"""

from __future__ import annotations

import re
import stat
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import torch

from capfuzz.devices import Rule
from capfuzz.differential import OUT_OF_MEMORY, Cause, Verdict
from capfuzz.findings import Finding, Mend, SourceLine
from capfuzz.targets import Case, InvalidCaseError, Target, UnknownNameError, registered_target
from capfuzz.version import VERSION

SCHEMA_VERSION = 3  # 2: a case may have a schedule; 3: an entry may have an edit that mends the fault
_SOME_VALUE = "[...]"
MAX_BYTES = 4 << 20  # an entry is a minimal case; one of this size is not an entry


class CorpusError(ValueError):
    """A corpus file that cannot be used: which file, which field, what is wrong."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class Expect(str, Enum):
    """What replay must show: a known-faulty variant's fault, agreement of mended code, or a fault known and open."""

    FAULT = "fault"
    EQUIVALENT = "equivalent"
    OPEN = "open"


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the finding came from."""

    capfuzz: str
    torch: str
    device: str
    engine: str
    seed: int | None = None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finding on disk."""

    schema: int
    target: str
    implementation: str
    expect: Expect
    verdict: Verdict
    cause: str | None
    message: str
    blame: SourceLine | None
    case: Case
    axes: dict[str, str]
    found: Found
    mend: Mend | None = None
    issue: str | None = None

    @property
    def label(self) -> str:
        return f"{self.verdict.value}:{self.cause}" if self.cause else self.verdict.value

    @property
    def faulty(self) -> SourceLine | None:
        """The faulty line, as far as it is known: the fault is named after `blame`."""
        return self.blame if self.mend is None else self.mend.line


def from_finding(finding: Finding) -> Entry:
    """The entry of a finding. What a known-faulty variant shows must stay so; anybody's own fault is to be mended."""
    known = finding.implementation.startswith("variant:")
    return Entry(
        schema=SCHEMA_VERSION,
        target=finding.target,
        implementation=finding.implementation,
        expect=Expect.FAULT if known else Expect.EQUIVALENT,
        verdict=finding.outcome.verdict,
        cause=finding.outcome.cause,
        message=finding.outcome.message,
        blame=finding.blame,
        case=finding.case,
        axes=finding.axes,
        found=Found(VERSION, str(torch.__version__), finding.device, finding.engine, finding.seed),
        mend=finding.mend,
    )


def load(path: Path) -> Entry:
    """Reads and checks one entry. Raises `CorpusError`."""
    data = _read(path)
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorpusError(path, f"is not JSON: {error}") from error
    return _checked(path, raw)


def _read(path: Path) -> bytes:
    """The whole file, at most `MAX_BYTES`: a FIFO would wait for ever, a device or a growing file need not end."""
    try:
        about = path.stat()
        if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):  # opening a directory says what it is
            raise CorpusError(path, "is not a regular file")
        if about.st_size > MAX_BYTES:
            raise CorpusError(path, f"is {about.st_size} bytes; an entry has at most {MAX_BYTES}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CorpusError(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise CorpusError(path, f"is more than {MAX_BYTES} bytes; an entry has at most that")
    return data


def _checked(path: Path, raw: Any) -> Entry:
    if not isinstance(raw, dict):
        raise CorpusError(path, "field $: an entry is a JSON object")
    version = raw.get("schema")
    if not isinstance(version, int) or isinstance(version, bool):
        raise CorpusError(path, "field $.schema: must be the schema version, an integer")
    if not 1 <= version <= SCHEMA_VERSION:
        raise CorpusError(path, f"field $.schema: version {version} is not known; this capfuzz reads 1 to {SCHEMA_VERSION}")
    try:
        entry = msgspec.convert(raw, Entry)
    except msgspec.ValidationError as error:
        raise CorpusError(path, f"field {_field(raw, str(error))}") from error
    try:
        target = registered_target(entry.target)
    except UnknownNameError as error:
        raise CorpusError(path, f"field $.target: {error}") from error
    _check_names(path, entry, target)
    try:
        target.feeds(entry.case)
    except InvalidCaseError as error:
        raise CorpusError(path, f"field $.{error}") from error
    return entry


def _check_names(path: Path, entry: Entry, target: Target) -> None:
    kind, _, name = entry.implementation.partition(":")
    if kind == "variant" and name not in target.variants:
        known = ", ".join(target.variants)
        raise CorpusError(path, f"field $.implementation: {target.name} has no variant {name!r}; there are: {known}")
    named = {"shipped": not name, "variant": bool(name), "user": all(name.partition(":"))}
    if entry.implementation == "shipped:" or not named.get(kind, False):
        raise CorpusError(
            path, f"field $.implementation: must be shipped, variant:NAME or user:MODULE:FUNCTION, is {entry.implementation!r}"
        )
    if entry.verdict is Verdict.EQUIVALENT:
        raise CorpusError(path, "field $.verdict: an entry records a fault; equivalent is not one")
    _check_cause(path, entry, target)


def _check_cause(path: Path, entry: Entry, target: Target) -> None:
    """An entry whose label no check gives could never fail as recorded."""
    verdict, cause = entry.verdict, entry.cause
    causes = {
        Verdict.CAPTURE_ERROR: [rule.value for rule in Rule],
        Verdict.DIVERGENCE: [cause.value for cause in Cause],
        Verdict.INVARIANT: list(target.laws),
    }.get(verdict)
    if causes is not None:
        if cause not in causes:
            known = f"must be one of {', '.join(causes)}" if causes else f"{target.name} has no laws"
            raise CorpusError(path, f"field $.cause: {known}, is {cause!r}")
    elif verdict in (Verdict.EAGER_ERROR, Verdict.REPLAY_ERROR):
        if not cause:
            raise CorpusError(path, f"field $.cause: must be the name of the exception of this {verdict.value}, is {cause!r}")
    elif cause is not None and (verdict, cause) != (Verdict.CRASH, OUT_OF_MEMORY):
        raise CorpusError(path, f"field $.cause: must be null, {verdict.value} has none; is {cause!r}")


def _field(raw: Any, message: str) -> str:
    """msgspec says `Expected `int`, got `str` - at `$.case.steps[0][...]``; put the field first, with its name in the map."""
    what, separator, where = message.rpartition(" - at `")
    if not separator:
        return f"$: {message}"
    return f"{_named(raw, where.rstrip('`'))}: {what}"


def _named(raw: Any, where: str) -> str:
    """The path of a field with its `[...]`, some value of a map, replaced by that value's name.

    The first wrong value shows when the map is halved. Only for an entry that is being refused: `raw` is changed.
    """
    before, separator, _ = where.partition(_SOME_VALUE)
    if not separator:
        return where
    values = _at(raw, before)
    everything = dict(values)
    names = list(everything)
    while len(names) > 1:
        values.clear()
        values.update((name, everything[name]) for name in names[: len(names) // 2])
        wrong = _where(raw).startswith(before + _SOME_VALUE)
        names = names[: len(names) // 2] if wrong else names[len(names) // 2 :]
    [name] = names
    shown = f".{name}" if name.isidentifier() and len(name) <= 40 else f"[{name[:40]!r}]"
    return where.replace(_SOME_VALUE, shown, 1)


def _where(raw: Any) -> str:
    """Where msgspec finds the first wrong value; empty if there is none."""
    try:
        msgspec.convert(raw, Entry)
    except msgspec.ValidationError as error:
        return str(error).rpartition(" - at `")[2].rstrip("`")
    return ""


def _at(raw: Any, where: str) -> dict[str, Any]:
    """What lies at a path such as `$.case.steps[0]`."""
    inner = raw
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", where):
        inner = inner[name] if name else inner[int(index)]
    found: dict[str, Any] = inner
    return found
