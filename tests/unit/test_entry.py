"""Corpus entries: strict reading. Whatever is wrong with a file, one `CorpusError` says which file and which field."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capfuzz import corpus as corpora
from capfuzz.corpus.entry import MAX_BYTES, Found
from capfuzz.corpus.store import encode
from capfuzz.devices import Device, Rule
from capfuzz.differential import Cause, Schedule, Verdict
from capfuzz.findings import Mend, SourceLine
from capfuzz.targets import Case
from capfuzz.workers import InProcess

Json = dict[str, Any]
Path_ = tuple[str | int, ...]

# An entry as schema version 1 wrote it. It may never change: corpora of users hold files like this one.
VERSION_1 = """\
{
  "schema": 1,
  "target": "fold_indptr",
  "implementation": "variant:cached_tensor",
  "expect": "fault",
  "verdict": "divergence",
  "cause": "stale_host_value",
  "message": "output differs at replay 2 (changed inputs 1)",
  "blame": {
    "file": "capfuzz/targets/fold_indptr.py",
    "line": 173,
    "function": "cached_tensor",
    "text": "return _cached_fold(indptr, fold_factor)",
    "op": "sub.Tensor"
  },
  "case": {
    "values": {
      "fold_factor": 1,
      "dtype": "int32",
      "layout": "contiguous"
    },
    "steps": [
      {
        "lengths": [
          0
        ],
        "start": 0
      },
      {
        "lengths": [
          1
        ],
        "start": 0
      }
    ]
  },
  "axes": {
    "batch": "only 1, 2, 8, 37 (not 0)",
    "replays": "needs 1 set of changed inputs"
  },
  "found": {
    "capfuzz": "0.1.0",
    "torch": "2.13.0+cpu",
    "device": "sim",
    "engine": "hypothesis",
    "seed": 1
  },
  "issue": null
}
"""


SCHEDULE: Json = {
    "warm_ups": 2,
    "second": "value",
    "axis": "fold_factor",
    "second_dies": True,
    "between": "both",
    "eager_between": True,
    "eager_layout": "contiguous",
}


def document() -> Json:
    """Version 3: as version 1, and the case has a schedule, and an edit mends the fault."""
    loaded: Json = json.loads(VERSION_1)
    mend = {"line": dict(loaded["blame"]), "before": loaded["blame"]["text"], "after": "return indptr", "cases": 40}
    return {**loaded, "schema": 3, "case": {**loaded["case"], "schedule": dict(SCHEDULE)}, "mend": mend}


def replaced(path: Path_, value: Any) -> Json:
    """The entry with one value replaced."""
    whole = document()
    inner: Any = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return whole


def without(path: Path_) -> Json:
    whole = document()
    inner: Any = whole
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return whole


def places(value: Any = None, path: Path_ = ()) -> list[Path_]:
    """The path of every value in the entry, containers included."""
    value = document() if value is None else value
    found: list[Path_] = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key)) if inner is not None else [(*path, key)]
    return found


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[Any], str]:
    """Writes an entry that must be refused, and gives the reason without the file's name, which it must begin with."""

    def why(content: Any) -> str:
        path = tmp_path / "entry.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        with pytest.raises(corpora.CorpusError) as caught:
            corpora.load(path)
        assert str(caught.value) == f"{path}: {caught.value.why}"
        assert caught.value.path == path
        assert "\n" not in caught.value.why and len(caught.value.why) < 400
        return caught.value.why

    return why


# -- good entries ------------------------------------------------------------------------------------------------------


def test_version_1_is_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    path.write_text(VERSION_1)
    assert corpora.load(path) == corpora.Entry(
        schema=1,
        target="fold_indptr",
        implementation="variant:cached_tensor",
        expect=corpora.Expect.FAULT,
        verdict=Verdict.DIVERGENCE,
        cause="stale_host_value",
        message="output differs at replay 2 (changed inputs 1)",
        blame=SourceLine(
            "capfuzz/targets/fold_indptr.py", 173, "cached_tensor", "return _cached_fold(indptr, fold_factor)", "sub.Tensor"
        ),
        case=Case(
            {"fold_factor": 1, "dtype": "int32", "layout": "contiguous"},
            [{"lengths": [0], "start": 0}, {"lengths": [1], "start": 0}],
        ),
        axes={"batch": "only 1, 2, 8, 37 (not 0)", "replays": "needs 1 set of changed inputs"},
        found=Found("0.1.0", "2.13.0+cpu", "sim", "hypothesis", 1),
        issue=None,
    )


def test_version_1_still_replays(tmp_path: Path, device: Device) -> None:
    path = tmp_path / "entry.json"
    path.write_text(VERSION_1)
    entry = corpora.load(path)
    from capfuzz.corpus.replay import subject_of

    subject = subject_of(entry)
    assert corpora.replay(entry, subject, InProcess(device, subject).judge).status is corpora.Status.FAILED


def test_round_trip_is_exact() -> None:
    path = Path(__file__).parents[1] / "data" / "entries" / f"v{corpora.SCHEMA_VERSION}.json"
    entry = corpora.load(path)
    assert encode(entry) == path.read_bytes(), "what is on disk is stable: indented, ordered, a newline at the end"


@pytest.mark.parametrize(
    "changes",
    [
        {"blame": None, "issue": "https://example.org/7", "expect": "open"},
        {
            "implementation": "user:mypackage.ops:fold",
            "expect": "equivalent",
            "message": 'not \u00e9 \u2603 \U0001f600 \\ " \n',
        },
        {"implementation": "shipped", "verdict": "reference_mismatch", "cause": None, "axes": {}},
        {"verdict": "eager_error", "cause": "TypeError"},
        {"verdict": "nondeterministic", "cause": None},
        {"verdict": "replay_error", "cause": "AcceleratorError"},
    ],
)
def test_round_trip_of_other_values(tmp_path: Path, changes: Json) -> None:
    path = tmp_path / "entry.json"
    path.write_text(json.dumps({**document(), **changes}))
    entry = corpora.load(path)
    again = tmp_path / "again.json"
    again.write_bytes(encode(entry))
    assert corpora.load(again) == entry
    assert {**document(), **changes} == json.loads(again.read_bytes())


@pytest.mark.parametrize("path", [("blame", "op"), ("found", "seed"), ("mend",), ("issue",)])
def test_fields_that_may_be_left_out(tmp_path: Path, path: Path_) -> None:
    file = tmp_path / "entry.json"
    file.write_text(json.dumps(without(path)))
    corpora.load(file)


# -- wrong types, missing and unknown fields ---------------------------------------------------------------------------

NULLABLE = {("cause",), ("blame",), ("blame", "op"), ("found", "seed"), ("issue",), ("case", "schedule", "axis")}
NULLABLE |= {("mend",), ("mend", "line", "op")}
OPTIONAL = {("blame", "op"), ("found", "seed"), ("mend",), ("mend", "line", "op"), ("issue",), ("case", "schedule")}
OPTIONAL |= {("case", "schedule", name) for name in SCHEDULE}
WRONG: tuple[Any, ...] = (None, True, 1, 1.5, "x", "1", [1.5], ["x"], {"x": 1.5})


def wrong_types() -> list[Any]:
    parameters = []
    for path in places():
        value: Any = document()
        for key in path:
            value = value[key]
        for wrong in WRONG:
            if (
                type(wrong) is type(value)
                or (wrong is None and path in NULLABLE)
                or (path == ("issue",) and isinstance(wrong, str))
            ):
                continue
            parameters.append(pytest.param(path, wrong, id=f"{'.'.join(map(str, path))}={wrong!r}"))
    return parameters


def schema_part(path: Path_) -> Path_:
    """The part of a path that the schema names; what follows are names of axes."""
    if path[:2] == ("case", "steps"):
        return path[:3]
    return path[:2] if path[:2] == ("case", "values") else path[:1] if path[0] == "axes" else path


@pytest.mark.parametrize(("path", "wrong"), wrong_types())
def test_wrong_type_names_the_field(refused: Callable[[Any], str], path: Path_, wrong: Any) -> None:
    why = refused(replaced(path, wrong))
    assert why.startswith("field $")
    field = why.removeprefix("field ").split(": ")[0]
    for key in schema_part(path):
        assert (f"[{key}]" if isinstance(key, int) else key) in field, f"{why!r} does not say {key}"


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("case", "values", "fold_factor"), 1.5),
        (("case", "values", "layout"), None),
        (("case", "steps", 1, "lengths"), "x"),
        (("case", "steps", 1, "lengths", 0), "x"),
        (("case", "steps", 1, "start"), True),
        (("axes", "batch"), 1),
    ],
)
def test_wrong_type_names_the_axis(refused: Callable[[Any], str], path: Path_, wrong: Any) -> None:
    field = refused(replaced(path, wrong)).removeprefix("field ").split(": ")[0]
    exact = "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    assert field == exact


def test_wrong_type_under_an_odd_name(refused: Callable[[Any], str]) -> None:
    """A name is anybody's text: it is shown, short, and cannot break the line."""
    assert refused(replaced(("axes", "a b\n"), 1)).startswith("field $.axes['a b\\n']: ")
    assert refused(replaced(("axes", "x y" * 1000), 1)).startswith("field $.axes['x yx y")
    assert refused(replaced(("case", "values", ""), None)).startswith("field $.case.values['']: ")


def test_wrong_type_in_a_large_map_is_found_quickly(refused: Callable[[Any], str]) -> None:
    names = {f"axis_{number}": "any" for number in range(50_000)}
    begun = time.monotonic()
    assert refused({**document(), "axes": {**names, "axis_31415": 1}}).startswith("field $.axes.axis_31415: ")
    assert time.monotonic() - begun < 5.0


def test_first_of_two_wrong_types_is_named(refused: Callable[[Any], str]) -> None:
    whole = replaced(("case", "steps", 1), {"lengths": [1], "start": 1.5})
    whole["axes"] = {"batch": 1}
    assert refused(whole).startswith("field $.case.steps[1].start: ")


def required() -> list[Path_]:
    named = [path for path in places() if isinstance(path[-1], str) and path not in OPTIONAL]
    return [path for path in named if path[0] != "axes" or len(path) == 1]  # `axes` holds free text by name


@pytest.mark.parametrize("path", required())
def test_missing_field_is_named(refused: Callable[[Any], str], path: Path_) -> None:
    why = refused(without(path))
    assert str(path[-1]) in why
    if path[0] == "case" and len(path) > 1:
        assert "case" in why.split(": ")[0], "where it is missing"


@pytest.mark.parametrize(
    "path", [(), ("blame",), ("case",), ("case", "values"), ("case", "steps", 1), ("case", "schedule"), ("found",), ("mend",)]
)
def test_unknown_field_is_named(refused: Callable[[Any], str], path: Path_) -> None:
    why = refused(replaced((*path, "surprise"), 1))
    assert why.startswith("field $") and "surprise" in why
    for key in path:
        assert str(key) in why


def test_the_places_are_all_of_the_schema() -> None:
    """A field that is added to the schema has to come into `document` and so into these tests."""
    named = {path[0] for path in places()}
    assert named == {field.name for field in msgspec.structs.fields(corpora.Entry)}
    for name, struct in (("blame", SourceLine), ("found", Found), ("mend", Mend), ("case", Case)):
        inner = {path[1] for path in places() if path[0] == name and len(path) == 2}
        assert inner == {field.name for field in msgspec.structs.fields(struct)}


# -- values that cannot be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("target",), "nosuch", "no target named 'nosuch'"),
        (("target",), "fold_indptrr", "did you mean 'fold_indptr'"),
        (("target",), "", "no target named ''"),
        (("target",), "../fold_indptr", "no target named"),
        (("implementation",), "variant:nosuch", "has no variant 'nosuch'"),
        (("implementation",), "variant:", "variant"),
        (("implementation",), "variant", "variant"),
        (("implementation",), "shipped:x", "shipped"),
        (("implementation",), "user:", "user:MODULE:FUNCTION"),
        (("implementation",), "user:mypackage.ops", "user:MODULE:FUNCTION"),
        (("implementation",), "user:mypackage.ops:", "user:MODULE:FUNCTION"),
        (("implementation",), "user::fold", "user:MODULE:FUNCTION"),
        (("implementation",), "shipped:", "shipped"),
        (("implementation",), "os:system", "user:MODULE:FUNCTION"),
        (("implementation",), "", "user:MODULE:FUNCTION"),
        (("expect",), "maybe", "maybe"),
        (("expect",), "FAULT", "FAULT"),
        (("verdict",), "nosuch", "nosuch"),
        (("verdict",), "equivalent", "equivalent is not one"),
        (("cause",), "nosuch", "'nosuch'"),
        (("cause",), "host_copy", "'host_copy'"),  # a cause of capture errors, and this is a divergence
        (("cause",), None, "None"),
        (("case", "values", "fold_factor"), 0, "from 1 to 1024, is 0"),
        (("case", "values", "fold_factor"), -3, "is -3"),
        (("case", "values", "fold_factor"), 1025, "is 1025"),
        (("case", "values", "fold_factor"), 10**30, ""),
        (("case", "values", "fold_factor"), "2", "must be an integer"),
        (("case", "values", "dtype"), "float32", "int32, int64, is 'float32'"),
        (("case", "values", "dtype"), 32, "int32, int64"),
        (("case", "values", "layout"), "diagonal", "contiguous"),
        (("case", "steps", 1, "lengths"), [-1], "must be from 0 to"),
        (("case", "steps", 1, "lengths"), [2**40 + 1], f"must be from 0 to {2**40}, is {2**40 + 1}"),
        (("case", "steps", 1, "lengths"), [], "as many rows as steps[0]"),
        (("case", "steps", 1, "lengths"), [1, 2], "as many rows as steps[0]"),
        (("case", "steps", 1, "lengths"), 3, "list"),
        (("case", "steps", 1, "start"), -1, "at least 0"),
        (("case", "steps", 1, "start"), [0], "integer"),
        (("case", "steps", 1, "lengths"), [2**31], "does not fit int32"),
        (("case", "steps", 1, "lengths"), [10**30], ""),
        (("case", "steps"), [], "captured inputs"),
    ],
)
def test_value_that_its_field_does_not_take(refused: Callable[[Any], str], path: Path_, value: Any, says: str) -> None:
    why = refused(replaced(path, value))
    assert says in why
    assert why.startswith("field $")
    field = why.removeprefix("field ").split(": ")[0]
    keys = [key for key in path if isinstance(key, str)]
    assert keys[-1] in field, why


def test_sum_that_overflows_only_when_folded(refused: Callable[[Any], str]) -> None:
    whole = replaced(("case", "values", "fold_factor"), 4)
    whole["case"]["steps"][1]["lengths"] = [2**29]
    assert "case.steps[1].lengths: folded, their sum does not fit int32" in refused(whole)
    whole["case"]["values"]["dtype"] = "int64"
    whole["case"]["values"]["fold_factor"] = 1024
    whole["case"]["steps"][1] = {"lengths": [2**40], "start": 2**63 - 1}
    assert "does not fit int64" in refused(whole)


@pytest.mark.parametrize("verdict", ["reference_mismatch", "nondeterministic", "crash", "hang"])
@pytest.mark.parametrize("cause", ["host_copy", ""])
def test_cause_where_the_verdict_has_none(refused: Callable[[Any], str], verdict: str, cause: str) -> None:
    """Such an entry could never fail as recorded: its label is one that no check gives."""
    assert refused({**document(), "verdict": verdict, "cause": cause}).startswith(f"field $.cause: must be null, {verdict} has")


@pytest.mark.parametrize("verdict", ["capture_error", "divergence"])
@pytest.mark.parametrize("cause", [None, "", "TypeError"])
def test_cause_that_the_verdict_does_not_know(refused: Callable[[Any], str], verdict: str, cause: str | None) -> None:
    assert refused({**document(), "verdict": verdict, "cause": cause}).startswith("field $.cause: must be one of ")


def test_an_invariant_is_a_law_of_its_target(tmp_path: Path, refused: Callable[[Any], str]) -> None:
    kept = Path(__file__).parents[1] / "repro" / "entries" / "metadata_builders--shifts_cpu_offsets.json"
    assert corpora.load(kept).label == "invariant:cpu_offsets_are_kept"
    whole = json.loads(kept.read_text())
    for cause in (None, "no_such_law"):
        assert refused({**whole, "cause": cause}).startswith("field $.cause: must be one of cpu_offsets_are_kept, ")
    assert "fold_indptr has no laws" in refused({**document(), "verdict": "invariant", "cause": "cpu_offsets_are_kept"})


@pytest.mark.parametrize(
    ("verdict", "cause"),
    [
        *(("capture_error", rule.value) for rule in Rule),
        *(("divergence", cause.value) for cause in Cause),
        ("crash", "out_of_memory"),
    ],
)
def test_every_cause_that_a_check_gives_is_known(tmp_path: Path, verdict: str, cause: str) -> None:
    path = tmp_path / "entry.json"
    path.write_text(json.dumps({**document(), "verdict": verdict, "cause": cause}))
    assert corpora.load(path).label == f"{verdict}:{cause}"


@pytest.mark.parametrize("verdict", ["eager_error", "replay_error"])
@pytest.mark.parametrize("cause", [None, ""])
def test_no_cause_where_the_verdict_has_one(refused: Callable[[Any], str], verdict: str, cause: str | None) -> None:
    assert refused({**document(), "verdict": verdict, "cause": cause}).startswith("field $.cause: must be the name of the")


# -- the schema's version ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, -1, corpora.SCHEMA_VERSION + 1, 99, 10**30])
def test_version_that_is_not_known(refused: Callable[[Any], str], version: int) -> None:
    """Before anything else: a later schema has other fields, and those are not what is wrong."""
    whole = {**document(), "schema": version, "field_of_tomorrow": {}, "case": "of another kind"}
    why = refused(whole)
    assert why.startswith("field $.schema: ")
    assert "field_of_tomorrow" not in why and "$.case" not in why


def test_version_of_the_future_is_said_to_be_one(refused: Callable[[Any], str]) -> None:
    newest = corpora.SCHEMA_VERSION
    why = refused({"schema": newest + 1})
    assert why == f"field $.schema: version {newest + 1} is not known; this capfuzz reads 1 to {newest}"


@pytest.mark.parametrize("version", ["1", 1.0, True, None, [1]])
def test_version_that_is_no_integer(refused: Callable[[Any], str], version: Any) -> None:
    assert refused({**document(), "schema": version}).startswith("field $.schema: ")


def test_no_version(refused: Callable[[Any], str]) -> None:
    assert refused(without(("schema",))).startswith("field $.schema: ")
    assert refused({}).startswith("field $.schema: ")


# -- files that are not entries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"nonsense",
        VERSION_1.encode()[:-3],
        VERSION_1.encode() + b"{}",
        VERSION_1.replace('"seed": 1', '"seed": NaN').encode(),
        VERSION_1.encode("utf-16"),
        VERSION_1.replace("changed", "\ufffd").encode("utf-8").replace(b"\xef\xbf\xbd", b"\xff"),
        b"[" * 200_000,
        b'{"a":' * 200_000,
        bytes(range(256)),
    ],
    ids=["empty", "brace", "word", "cut", "two", "nan", "utf-16", "not utf-8", "deep list", "deep object", "bytes"],
)
def test_not_json(refused: Callable[[Any], str], content: bytes) -> None:
    assert refused(content).startswith("is not JSON: ")


@pytest.mark.parametrize("content", [[], [1], 1, "x", None, True])
def test_json_that_is_no_object(refused: Callable[[Any], str], content: Any) -> None:
    assert refused(content) == "field $: an entry is a JSON object"


def test_size_limit(refused: Callable[[Any], str]) -> None:
    big = VERSION_1.encode() + b" " * (MAX_BYTES - len(VERSION_1) + 1)
    assert refused(big) == f"is {MAX_BYTES + 1} bytes; an entry has at most {MAX_BYTES}"


def test_at_the_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    path.write_bytes(VERSION_1.encode() + b" " * (MAX_BYTES - len(VERSION_1)))
    assert corpora.load(path).target == "fold_indptr"


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(corpora.CorpusError, match="cannot be read: No such file"):
        corpora.load(tmp_path / "nosuch.json")
    with pytest.raises(corpora.CorpusError, match="cannot be read: Is a directory"):
        corpora.load(tmp_path)


def test_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(corpora.CorpusError, match=r"x\.json: is not a regular file"):
        corpora.load(tmp_path / "x.json")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_device_is_not_read(device: str) -> None:
    with pytest.raises(corpora.CorpusError, match="is not a regular file"):
        corpora.load(Path(device))


def test_file_that_grows_after_its_size_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "entry.json"
    path.write_text(VERSION_1)
    small = path.stat()
    os.truncate(path, 100_000_000)
    monkeypatch.setattr(Path, "stat", lambda self, **_: small)
    with pytest.raises(corpora.CorpusError, match=f"is more than {MAX_BYTES} bytes"):
        corpora.load(path)


# -- no code -----------------------------------------------------------------------------------------------------------


def test_entry_never_imports_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """An entry may come from anybody: reading, showing and replaying it touches no module that it names."""
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath('imported').touch()\n\ndef f(**_):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from capfuzz.cli.text import entry_text
    from capfuzz.corpus.replay import subject_of

    path = tmp_path / "entry.json"
    path.write_text(json.dumps({**document(), "implementation": "user:planted:f", "expect": "equivalent"}))
    entry = corpora.load(path)
    subject = subject_of(entry)
    assert subject.label == "shipped"
    assert entry_text(entry, subject.target)
    assert corpora.replay(entry, subject, InProcess(device, subject).judge).status is corpora.Status.FIXED
    assert "planted" not in sys.modules
    assert not (tmp_path / "imported").exists()


def test_document_is_fresh_each_time() -> None:
    """These tests change it; one that leaked would make the next one pass for the wrong reason."""
    before = copy.deepcopy(document())
    replaced(("case", "values", "fold_factor"), 5)
    assert document() == before


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("warm_ups", 4), ("warm_ups", -1), ("second", "x"), ("between", "x"), ("axis", "x"), ("eager_layout", "")],
)
def test_a_schedule_that_is_none_is_refused(refused: Callable[[Any], str], name: str, wrong: Any) -> None:
    assert f"case.schedule.{name}" in refused(replaced(("case", "schedule", name), wrong))


def test_a_case_with_a_schedule_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    path.write_text(json.dumps(document()))
    entry = corpora.load(path)
    assert entry.case.schedule == Schedule(2, "value", "fold_factor", True, "both", True, "contiguous")
    path.write_bytes(encode(entry))
    assert corpora.load(path) == entry
