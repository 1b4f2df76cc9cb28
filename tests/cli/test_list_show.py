"""`capfuzz list` and `capfuzz show`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capfuzz.targets import targets

Run = Callable[..., Any]
Save = Callable[..., Path]


def test_list_shows_every_target_axis_and_variant(capfuzz: Run) -> None:
    result = capfuzz("list")
    assert (result.code, result.err) == (0, "")
    blocks = dict(re.findall(r"^(\w+): (.*(?:\n .*)*)", result.out, re.MULTILINE))
    assert sorted(blocks) == sorted(targets())
    for name, target in targets().items():
        assert target.summary in blocks[name]
        for axis in (*target.fixed, *target.stepped):
            assert re.search(rf"\b{axis.name}\b", blocks[name])
        for variant in target.variants.values():
            row = re.search(rf"^    {variant.name} +(\S+) +(.*)$", blocks[name], re.MULTILINE)
            assert row is not None
            assert row.groups() == (variant.label, variant.summary)
    assert re.search(r"scalar_store +capture_error:host_copy ", blocks["fold_indptr"])
    assert "layout (contiguous, offset, strided, column)" in blocks["fold_indptr"]


def test_list_one_target(capfuzz: Run) -> None:
    result = capfuzz("list", "fold_indptr")
    assert result.code == 0
    assert re.findall(r"^(\w+):", result.out, re.MULTILINE) == ["fold_indptr"]


def test_list_unknown_target(capfuzz: Run) -> None:
    result = capfuzz("list", "fold_indptrr")
    assert (result.code, result.out) == (2, "")
    assert "did you mean 'fold_indptr'?" in result.err


def test_an_entry_names_the_line_and_the_edit_that_its_finding_named(capfuzz: Run) -> None:
    """Where an edit mends the fault, its line is the faulty one, and not the one that the trace ends at."""
    run = capfuzz("run", "batch_indices_positions", "--variant", "uniform_appends", "--max-examples", 100, "--seed", 1, "-x")
    assert run.code == 1
    told = re.search(r"^  line .*\n.*\n", run.out, re.MULTILINE), re.search(r"^  mend .*\n", run.out, re.MULTILINE)
    assert told[0] and "even = indptr[:1] + step * torch.arange" in told[0][0]
    assert told[1] and "`even = indptr` in its place" in told[1][0]
    [path] = Path("corpus").rglob("*.json")
    for verb in ("show", "replay"):
        again = capfuzz(verb, path).out
        assert told[0][0] in again and told[1][0] in again
    assert capfuzz("corpus", "check").code == 0, "the file is named after the line that was blamed, as before"


def test_show_is_the_entry_for_a_person(capfuzz: Run, save: Save) -> None:
    path = save("one", expect="open", issue="https://example.org/issues/7")
    result = capfuzz("show", path)
    assert (result.code, result.err) == (0, "")
    for text in (
        "capture_error:host_copy  in fold_indptr (variant:scalar_store)",
        "a/b.py:113 in scalar_store\n",
        "out[0] = 0",
        "lowers to copy_",
        "Cannot copy between CPU and CUDA tensors during CUDA graph capture",
        "batch 2, fold_factor 2, dtype int32, layout contiguous, no changed inputs",
        "captured  indptr = [0, 3, 3]",
        "batch: any (tried 0, 1)",
        "open (https://example.org/issues/7)",
        "on sim by the hypothesis engine, seed 1, capfuzz 0.1.0, torch 2.13.0",
    ):
        assert text in result.out


def test_show_names_every_changed_input(capfuzz: Run, save: Save) -> None:
    case = {
        "values": {"fold_factor": 1, "dtype": "int64", "layout": "strided"},
        "steps": [{"lengths": [n] * 20, "start": n} for n in range(3)],
    }
    out = capfuzz("show", save("one", case=case)).out
    assert "captured  indptr = [0, 0, 0" in out
    assert "change 1  indptr = [1, 2, 3" in out
    assert re.search(r"change 2  indptr = \[2, 4, 6.*\.\.\., 42\] \(21 elements\)", out), "long arrays are cut, and say so"
    assert "no changed inputs" not in out


def test_show_runs_nothing(capfuzz: Run, mine: Path, save: Save) -> None:
    assert capfuzz("show", save("one", implementation="user:mine:bad")).code == 0
    assert "mine" not in sys.modules


def test_show_without_blame_or_seed(capfuzz: Run, save: Save, entry: Callable[..., dict[str, Any]]) -> None:
    found = {**entry()["found"], "seed": None}
    out = capfuzz("show", save("one", blame=None, found=found, axes={}, message="")).out
    assert "no line could be blamed" in out
    assert "seed" not in out and "axes" not in out and "message" not in out


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"schema": 99}, "field $.schema: version 99"), ({"target": "nosuch"}, "field $.target: "), ({"extra": 1}, "extra")],
)
def test_show_broken_entry(capfuzz: Run, save: Save, changes: dict[str, Any], says: str) -> None:
    path = save("one", **changes)
    result = capfuzz("show", path)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"Error: {path}: ") and says in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("name", ["nosuch.json", "corpus"])
def test_show_what_is_no_file(capfuzz: Run, save: Save, name: str) -> None:
    save("one")
    result = capfuzz("show", name)
    assert (result.code, result.out) == (2, "")
    assert name in result.err and "Traceback" not in result.err
