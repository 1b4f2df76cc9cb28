"""`capfuzz replay`: what each entry shows now, broken ones beside good ones."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Save = Callable[..., Path]
Entry = Callable[..., dict[str, Any]]


def lines(out: str, status: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith(status)]


# -- statuses ----------------------------------------------------------------------------------------------------------


def test_failed(capfuzz: Run, save: Save) -> None:
    path = save("one")
    result = capfuzz("replay", path)
    assert (result.code, result.err) == (1, "")
    assert lines(result.out, "FAILED") == [f"FAILED   {path}  capture_error:host_copy"]
    assert "out[0] = 0" in result.out and "batch 2, fold_factor 2" in result.out
    assert result.out.splitlines()[-1] == "1 entry: 1 FAILED"


def test_quiet_is_one_line_an_entry(capfuzz: Run, save: Save) -> None:
    save("one")
    save("two")
    result = capfuzz("replay", "-q")
    assert result.code == 1
    assert [line.split()[0] for line in result.out.splitlines()] == ["FAILED", "FAILED", "2"]


def test_changed_says_both_labels(capfuzz: Run, save: Save) -> None:
    path = save("one", cause="synchronization")
    result = capfuzz("replay", path)
    assert result.code == 1
    assert lines(result.out, "CHANGED") == [
        f"CHANGED  {path}  capture_error:host_copy (recorded: capture_error:synchronization)"
    ]
    assert result.out.splitlines()[-1] == "1 entry: 1 CHANGED"


def test_fixed(capfuzz: Run, save: Save) -> None:
    path = save("one", implementation="shipped", expect="equivalent")
    result = capfuzz("replay", path)
    assert (result.code, result.err) == (0, "")
    assert lines(result.out, "FIXED") == [f"FIXED    {path}  equivalent"]
    assert result.out.splitlines()[-1] == "1 entry: 1 FIXED"


def test_entry_of_a_users_function_says_that_it_ran_on_the_shipped_one(capfuzz: Run, mine: Path, save: Save) -> None:
    save("one", implementation="user:mine:bad", expect="equivalent")
    result = capfuzz("replay")
    assert result.code == 0
    assert "FIXED" in result.out
    assert "found on mine:bad, run here on the shipped implementation; --impl mine:bad runs it on yours" in result.out
    assert "mine" not in sys.modules, "an entry never names code to import"


@pytest.mark.parametrize(("function", "code", "status"), [("bad", 1, "FAILED"), ("good", 0, "FIXED")])
def test_own_function(capfuzz: Run, mine: Path, save: Save, function: str, code: int, status: str) -> None:
    save("one", implementation="user:mine:bad", expect="equivalent")
    save("two")  # of a variant: with --impl every entry runs on the own function
    result = capfuzz("replay", "--impl", f"mine:{function}", "-q")
    assert result.code == code
    assert len(lines(result.out, status)) == 2
    assert "run here on the shipped" not in result.out


@pytest.mark.parametrize("spec", ["mine", "nosuchmodule:f", "mine:nosuch"])
def test_own_function_that_is_none(capfuzz: Run, mine: Path, save: Save, spec: str) -> None:
    save("one")
    result = capfuzz("replay", "--impl", spec)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: --impl") and result.err.count("\n") == 1


def test_own_function_that_cannot_take_the_arguments(capfuzz: Run, work: Path, save: Save) -> None:
    save("one")
    (work / "other.py").write_text("def f(indptr):\n    return indptr\n")
    result = capfuzz("replay", "--impl", "other:f")
    assert (result.code, result.out) == (2, "")
    assert "'other:f'" in result.err and "fold_factor" in result.err and result.err.count("\n") == 1


# -- which entries -----------------------------------------------------------------------------------------------------


def test_directories_files_and_both(capfuzz: Run, work: Path, save: Save) -> None:
    one, two = save("one"), save("two", implementation="shipped")
    deep = work / "elsewhere" / "deep"
    deep.mkdir(parents=True)
    (deep / "three.json").write_text(one.read_text())
    (deep / "notes.txt").write_text("not an entry")
    (deep / ".hidden.json").write_text("half-written")
    result = capfuzz("replay", "corpus", "elsewhere", "-q")
    assert result.code == 1
    assert [line.split()[:2] for line in result.out.splitlines()[:-1]] == [
        ["FAILED", str(one)],
        ["FIXED", str(two)],
        ["FAILED", "elsewhere/deep/three.json"],
    ]
    assert result.out.splitlines()[-1] == "3 entries: 2 FAILED, 1 FIXED"
    assert capfuzz("replay", "corpus", one, "-q").out.count(str(one)) == 1, "named twice, run once"
    assert capfuzz("replay", "-q").out.splitlines()[-1] == "2 entries: 1 FAILED, 1 FIXED"
    assert capfuzz("replay", two, "-q").code == 0


def test_empty_corpus(capfuzz: Run, work: Path) -> None:
    (work / "corpus").mkdir()
    result = capfuzz("replay")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("0 entries")


def test_no_corpus_at_all(capfuzz: Run) -> None:
    result = capfuzz("replay")
    assert (result.code, result.out) == (2, "")
    assert "no corpus directory" in result.err and "capfuzz run" in result.err


def test_name_that_does_not_exist(capfuzz: Run, save: Save) -> None:
    path = save("one")
    result = capfuzz("replay", path, "nosuch.json")
    assert (result.code, result.out) == (2, "")
    assert "nosuch.json: no such file" in result.err


# -- broken entries ----------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(save: Save, entry: Entry) -> dict[str, tuple[Path, str]]:
    """Five files that are no entries: by name, the path and what its error must say."""
    case = entry()["case"]
    wrong = save("a-wrong-type", case={**case, "steps": [{"lengths": [1, "2"], "start": 0}]})
    unknown = save("b-unknown-field", surprise=1)
    target = save("c-unknown-target", target="fold_indptrr")
    truncated = save("d-truncated")
    truncated.write_text(truncated.read_text()[:-20])
    junk = save("e-junk")
    os.truncate(junk, 100_000_000)  # sparse: one hundred megabytes that cost nothing
    return {
        "wrong type": (wrong, "$.case.steps[0]"),
        "unknown field": (unknown, "surprise"),
        "unknown target": (target, "field $.target: no target named 'fold_indptrr'; did you mean 'fold_indptr'?"),
        "truncated": (truncated, "is not JSON"),
        "junk": (junk, "is 100000000 bytes; an entry has at most"),
    }


def test_broken_entries_are_one_error_each_and_the_good_one_runs(
    capfuzz: Run, broken: dict[str, tuple[Path, str]], save: Save
) -> None:
    good = save("z-good")
    begun = time.monotonic()
    result = capfuzz("replay", "-q")
    assert time.monotonic() - begun < 5.0
    assert "Traceback" not in result.out + result.err
    found = lines(result.out, "ERROR")
    assert len(found) == len(broken) == 5
    for line, (path, says) in zip(found, broken.values(), strict=True):
        assert line.startswith(f"ERROR    {path}: ")
        assert says in line
        assert len(line) < 400, "an error, not a dump of the file"
    assert lines(result.out, "FAILED") == [f"FAILED   {good}  capture_error:host_copy"]
    assert result.out.splitlines()[-1] == "6 entries: 1 FAILED, 5 ERROR"
    assert result.code == 1


def test_wrong_type_names_the_axis(capfuzz: Run, broken: dict[str, tuple[Path, str]]) -> None:
    path, _ = broken["wrong type"]
    assert "lengths" in capfuzz("replay", path).out


def test_only_broken_entries_or_fixed_ones_beside_them_is_status_2(
    capfuzz: Run, broken: dict[str, tuple[Path, str]], save: Save
) -> None:
    assert capfuzz("replay", "-q").code == 2
    save("z-good", implementation="shipped")
    result = capfuzz("replay", "-q")
    assert result.code == 2
    assert result.out.splitlines()[-1] == "6 entries: 1 FIXED, 5 ERROR"


@pytest.mark.parametrize("kind", ["empty", "binary", "directory", "dangling link", "deep", "not an object", "fifo", "device"])
def test_other_junk_is_one_error_too(capfuzz: Run, work: Path, kind: str) -> None:
    path = work / "corpus" / "fold_indptr" / "x.json"
    path.parent.mkdir(parents=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes({"empty": b"", "binary": bytes(range(256)), "deep": b"[" * 100_000, "not an object": b"[1, 2]"}[kind])
    result = capfuzz("replay")
    assert result.code == 2
    assert "Traceback" not in result.out + result.err
    assert len(lines(result.out, "ERROR")) == 1


def test_markup_in_an_entry_is_text(capfuzz: Run, save: Save, entry: Entry) -> None:
    blame = {**entry()["blame"], "text": "out[0] = x[red]y[/red]"}
    save("one", blame=blame, message="[bold]not bold[/bold]")
    out = capfuzz("replay").out
    assert "out[0] = x[red]y[/red]" in out and "[bold]not bold[/bold]" in out


def test_entry_of_a_run_replays_without_it(capfuzz: Run, work: Path) -> None:
    """A divergence keeps the changed inputs that it needs: the saved case alone shows it."""
    assert capfuzz("run", "fold_indptr", "--variant", "cached_tensor", "--seed", "1", "-x").code == 1
    [path] = (work / "corpus").rglob("*.json")
    document = json.loads(path.read_text())
    assert len(document["case"]["steps"]) == 2
    result = capfuzz("replay", "-q")
    assert result.code == 1
    assert lines(result.out, "FAILED")
