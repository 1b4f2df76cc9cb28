"""Entries of every schema version there has been: one of each lies in `tests/data/entries`, and is never changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from capfuzz import corpus as corpora
from capfuzz.corpus.replay import Status, subject_of
from capfuzz.corpus.store import encode
from capfuzz.devices import Device
from capfuzz.differential import SIMPLEST, Schedule
from capfuzz.targets.judge import judge

KEPT = Path(__file__).parents[1] / "data" / "entries"
VERSIONS = range(1, corpora.SCHEMA_VERSION + 1)


def test_there_is_one_of_each() -> None:
    assert sorted(path.name for path in KEPT.iterdir()) == [f"v{version}.json" for version in VERSIONS]


@pytest.mark.parametrize("version", VERSIONS)
def test_it_loads_replays_and_migrates(tmp_path: Path, device: Device, version: int) -> None:
    path = KEPT / f"v{version}.json"
    entry = corpora.load(path)
    assert entry.schema == version == msgspec.json.decode(path.read_bytes())["schema"]
    replayed = corpora.replay(entry, subject_of(entry), lambda case: judge(device, subject_of(entry), case))
    assert replayed.status is Status.FAILED and replayed.as_expected

    moved = tmp_path / "entry.json"
    shutil.copy(path, moved)
    corpora.overwrite(moved, corpora.upgraded(entry))
    newest = corpora.load(moved)
    assert newest.schema == corpora.SCHEMA_VERSION
    assert newest == msgspec.structs.replace(entry, schema=corpora.SCHEMA_VERSION)
    assert moved.read_bytes() == encode(newest)


def test_what_each_version_had() -> None:
    """1: no schedule. 2: a schedule, where it is not the simplest. 3: an edit that mends the fault, where one was found."""
    assert corpora.load(KEPT / "v1.json").case.schedule == SIMPLEST
    assert b"schedule" not in (KEPT / "v1.json").read_bytes()
    assert corpora.load(KEPT / "v2.json").case.schedule == Schedule(second="value", axis="dtype")
    assert corpora.load(KEPT / "v2.json").mend is None
    assert b"mend" not in (KEPT / "v2.json").read_bytes()
    newest = corpora.load(KEPT / "v3.json")
    assert newest.mend is not None and newest.blame is not None and newest.mend.line.line == newest.blame.line - 1
