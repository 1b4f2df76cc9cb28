"""`capfuzz minimize`, `corpus check|dedupe|migrate` and `triage`: looking after entries."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capfuzz import corpus as corpora
from capfuzz.corpus import store

Run = Callable[..., Any]
Save = Callable[..., Path]
Entry = Callable[..., dict[str, Any]]

NAME = "capture_error-host_copy-7f02ddc8"
BLAME = {
    "file": "capfuzz/targets/fold_indptr.py",
    "line": 113,
    "function": "scalar_store",
    "text": "out[0] = 0",
    "op": "copy_",
}
LARGE = {"values": {"fold_factor": 3, "dtype": "int64", "layout": "strided"}, "steps": [{"lengths": [3, 0, 5], "start": 2}]}
SMALL = {"values": {"fold_factor": 1, "dtype": "int32", "layout": "contiguous"}, "steps": [{"lengths": [], "start": 0}]}


def case_of(path: Path) -> Any:
    return json.loads(path.read_text())["case"]


# -- minimize ----------------------------------------------------------------------------------------------------------


def test_an_edited_entry_is_minimised_in_place(capfuzz: Run, save: Save) -> None:
    path = save(NAME, case=LARGE, schema=1, message="stale")
    path.chmod(0o600)
    result = capfuzz("minimize", path)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"MINIMIZED  {path}  capture_error:host_copy"
    assert (
        lines[1].split()[:3] == ["before", "batch", "3,"] and "after" in result.out and "batch 0, fold_factor 1" in result.out
    )
    assert lines[-1] == "1 entry: 1 MINIMIZED"
    kept = corpora.load(path)
    assert case_of(path) == SMALL
    assert kept.schema == corpora.SCHEMA_VERSION and kept.message.startswith("Cannot copy") and "batch" in kept.axes
    assert kept.found.seed == 1, "where it was found stays"
    assert os.listdir(path.parent) == [path.name], "nothing else is left"

    before = path.read_bytes(), path.stat().st_mtime_ns
    result = capfuzz("minimize", "corpus")
    assert result.out.splitlines() == [f"MINIMAL    {path}  capture_error:host_copy", "1 entry: 1 MINIMAL"]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_what_does_not_reproduce_is_refused(capfuzz: Run, save: Save, mine: Path) -> None:
    mended = save("a", implementation="shipped", case=LARGE)
    other = save("b", cause="synchronization", case=LARGE)
    users = save("c", implementation="user:mine:bad", expect="equivalent", case=LARGE)
    broken = save("d", surprise=1)
    contents = {path: path.read_bytes() for path in (mended, other, users, broken)}
    result = capfuzz("minimize", "corpus")
    assert result.code == 2
    assert result.out.splitlines()[:3] == [
        f"REFUSED    {mended}  equivalent (recorded: capture_error:host_copy)",
        f"REFUSED    {other}  capture_error:host_copy (recorded: capture_error:synchronization)",
        f"REFUSED    {users}  equivalent (recorded: capture_error:host_copy); it was found on mine:bad: --impl mine:bad",
    ]
    assert result.out.splitlines()[-1] == "4 entries: 3 REFUSED, 1 ERROR"
    assert {path: path.read_bytes() for path in contents} == contents
    result = capfuzz("minimize", users, "--impl", "mine:bad")
    assert result.code == 0 and case_of(users) == SMALL


def test_an_entry_that_cannot_be_written_stays_whole(capfuzz: Run, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(NAME, case=LARGE)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    result = capfuzz("minimize", path)
    assert result.code == 2
    assert f"ERROR    {path.absolute()}: cannot be written: No space left on device" in result.out.replace("\n", "")
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def test_minimize_names_an_entry(capfuzz: Run) -> None:
    result = capfuzz("minimize")
    assert result.code == 2 and "ENTRY..." in result.err


# -- corpus check ------------------------------------------------------------------------------------------------------


def test_check_of_a_good_corpus(capfuzz: Run, save: Save) -> None:
    save(NAME, blame=BLAME, schema=corpora.SCHEMA_VERSION)
    result = capfuzz("corpus", "check")
    assert (result.code, result.err, result.out) == (0, "", "1 entry: 1 OK\n")


def test_check_says_what_is_wrong_with_each(capfuzz: Run, save: Save, work: Path) -> None:
    good = save(NAME, blame=BLAME)
    save("a-name-of-its-own", blame=BLAME)
    save("capture_error-host_copy-00000000", blame=None)  # which op it was is not known: any digest will do
    save("divergence-values-00000000", blame=None)
    save("broken").write_text("{")
    elsewhere = work / "corpus" / "moe_align"
    elsewhere.mkdir()
    shutil.copy(good, elsewhere / f"{NAME}.json")
    result = capfuzz("corpus", "check")
    assert result.code == 2
    errors = {
        line.split()[1].rstrip(":"): line.split(": ", 1)[1] for line in result.out.splitlines() if line.startswith("ERROR")
    }
    where = "corpus/fold_indptr/"
    assert errors.keys() == {
        f"{where}a-name-of-its-own.json",
        f"{where}divergence-values-00000000.json",
        f"{where}broken.json",
        f"corpus/moe_align/{NAME}.json",
    }
    assert errors[f"{where}a-name-of-its-own.json"] == f"holds the fault {NAME}: it belongs in {NAME}.json"
    assert errors[f"corpus/moe_align/{NAME}.json"].startswith("is an entry of fold_indptr: it belongs in a directory")
    assert errors[f"{where}broken.json"].startswith("is not JSON")
    assert "5 entries of an older schema version" in result.out
    assert result.out.splitlines()[-1] == "6 entries: 2 OK, 4 ERROR"


def test_this_projects_own_corpus(capfuzz: Run) -> None:
    own = Path(__file__).parents[2] / "corpus"
    result = capfuzz("corpus", "check", own)
    assert result.code == 0, result.out


# -- corpus dedupe -----------------------------------------------------------------------------------------------------


@pytest.fixture
def twice(save: Save) -> dict[str, Path]:
    """One fault three times, and three that are others: of another implementation, another fault, mended."""
    return {
        "large": save("a", case=LARGE),
        "small": save("b", case=SMALL, blame={**BLAME, "text": "as it was written before"}),
        "middle": save("c"),
        "users": save("d", implementation="user:mine:bad", expect="equivalent"),
        "other": save("e", implementation="variant:item_read", cause="synchronization"),
        "gone": save("f", implementation="shipped", expect="equivalent", blame=BLAME),
    }


def test_dedupe_keeps_the_smallest_of_each_fault(capfuzz: Run, twice: dict[str, Path]) -> None:
    contents = {path: path.read_bytes() for path in twice.values()}
    result = capfuzz("corpus", "dedupe", "--dry-run")
    assert (result.code, result.err) == (0, "")
    would = [line.split()[2] for line in result.out.splitlines() if line.startswith("WOULD REMOVE")]
    assert would == [str(twice["middle"]), str(twice["large"])]
    assert {path: path.read_bytes() for path in twice.values()} == contents

    result = capfuzz("corpus", "dedupe")
    assert result.code == 0
    assert result.out.splitlines()[0].endswith(f"fold_indptr/{NAME}, kept in {twice['small']}")
    assert result.out.splitlines()[-1] == "6 entries: 4 KEPT, 2 REMOVED"
    assert {path for path in twice.values() if path.exists()} == set(twice.values()) - {twice["middle"], twice["large"]}
    assert capfuzz("corpus", "dedupe").out.splitlines() == ["4 entries: 4 KEPT"]


def test_dedupe_leaves_what_it_cannot_read(capfuzz: Run, save: Save) -> None:
    path = save("one")
    broken = save("two")
    broken.write_text("{")
    result = capfuzz("corpus", "dedupe")
    assert result.code == 2 and "two.json: is not JSON" in result.out
    assert path.exists() and broken.exists()


# -- corpus migrate ----------------------------------------------------------------------------------------------------


def test_migrate_rewrites_older_versions(capfuzz: Run, save: Save, work: Path) -> None:
    old = save(NAME, blame=BLAME)
    before = corpora.load(old)
    (work / "shortcut.json").symlink_to(old)
    result = capfuzz("corpus", "migrate", "shortcut.json")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [f"MIGRATED shortcut.json  1 -> {corpora.SCHEMA_VERSION}", "1 entry: 1 MIGRATED"]
    assert (work / "shortcut.json").is_symlink(), "what it points to is rewritten"
    after = corpora.load(old)
    assert after == corpora.upgraded(before) and after.schema == corpora.SCHEMA_VERSION
    assert old.read_bytes() == store.encode(after)
    assert capfuzz("corpus", "migrate").out.splitlines() == ["1 entry: 1 NEWEST"]
    save("broken", schema=99)
    result = capfuzz("corpus", "migrate")
    assert result.code == 2 and "version 99 is not known" in result.out


def test_a_misspelt_verb_of_the_corpus(capfuzz: Run) -> None:
    result = capfuzz("corpus", "chek")
    assert result.code == 2 and "no verb named 'chek'; did you mean 'check'? (verbs: check, dedupe, migrate)" in result.err


# -- triage ------------------------------------------------------------------------------------------------------------


def test_triage_tells_the_expected_from_the_rest(capfuzz: Run, save: Save, mine: Path) -> None:
    good = [save("a"), save("b", implementation="shipped", expect="equivalent"), save("c", expect="open")]
    users = save("d", implementation="user:mine:bad", expect="equivalent")
    result = capfuzz("triage")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"REPRODUCES  {good[0]}  capture_error:host_copy",
        f"MENDED      {good[1]}  equivalent (recorded: capture_error:host_copy)",
        f"REPRODUCES  {good[2]}  capture_error:host_copy",
        f"MENDED      {users}  equivalent (recorded: capture_error:host_copy), on the shipped implementation, not on mine:bad",
        "4 entries: 2 REPRODUCES, 2 MENDED; 0 UNEXPECTED",
    ]
    result = capfuzz("triage", users, "--impl", "mine:bad")
    assert result.code == 1
    assert result.out.splitlines()[0] == f"REPRODUCES  {users}  capture_error:host_copy  UNEXPECTED, expects equivalent"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"implementation": "shipped", "expect": "fault"}, "MENDED"),
        ({"implementation": "shipped", "expect": "open"}, "MENDED"),
        ({"expect": "equivalent"}, "REPRODUCES"),
        ({"cause": "synchronization"}, "CHANGED"),
        ({"cause": "synchronization", "expect": "equivalent"}, "CHANGED"),
    ],
)
def test_triage_goes_red_on_what_is_not_expected(capfuzz: Run, save: Save, changes: dict[str, Any], word: str) -> None:
    save("a", **changes)
    save("broken").write_text("{")
    result = capfuzz("triage")
    assert result.code == 1, "a broken file does not hide it"
    assert result.out.startswith(word) and "UNEXPECTED" in result.out.splitlines()[0]
    assert result.out.splitlines()[-1] == f"2 entries: 1 {word}, 1 ERROR; 1 UNEXPECTED"


def test_triage_of_a_broken_file_alone(capfuzz: Run, save: Save) -> None:
    save("a", expect="fault")
    save("broken").write_text("{")
    assert capfuzz("triage").code == 2
