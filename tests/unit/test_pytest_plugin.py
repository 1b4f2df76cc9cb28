"""The pytest plugin: every corpus entry is one test, its id is its path, and it passes when the entry shows what it must."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import capfuzz.cli.text
import capfuzz.targets

# All imported now: pytester drops modules that an inner run imports first, and torch cannot be imported twice.
import capfuzz.targets.subjects
from capfuzz.pytest_plugin import _is_target

pytest_plugins = ["pytester"]

Corpus = Callable[..., Path]

MINE = """\
import torch
import torch.nn.functional as F

def good(indptr, fold_factor):
    return F.pad(torch.cumsum(torch.diff(indptr).repeat_interleave(fold_factor), 0), (1, 0)).to(indptr.dtype)

def bad(indptr, fold_factor):
    out = good(indptr, fold_factor)
    out[0] = 0
    return out

def other(indptr):
    return indptr
"""


@pytest.fixture
def corpus(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """`corpus(name, field=value...)` writes the aiter fault as `corpus/fold_indptr/<name>.json`, with fields replaced."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str = "one", directory: str = "corpus/fold_indptr", **changes: Any) -> Path:
        document = {
            "schema": 1,
            "target": "fold_indptr",
            "implementation": "variant:scalar_store",
            "expect": "fault",
            "verdict": "capture_error",
            "cause": "host_copy",
            "message": "Cannot copy between CPU and CUDA tensors",
            "blame": {"file": "a/b.py", "line": 113, "function": "scalar_store", "text": "out[0] = 0", "op": "copy_"},
            "case": {
                "values": {"fold_factor": 2, "dtype": "int32", "layout": "contiguous"},
                "steps": [{"lengths": [3, 0], "start": 0}],
            },
            "axes": {},
            "found": {"capfuzz": "0.1.0", "torch": "2.13.0", "device": "sim", "engine": "hypothesis", "seed": 1},
        }
        path = pytester.path / directory / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**document, **changes}))
        return path

    return write


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    # In this process capfuzz is imported already, of which pytest would warn where an egg-info lies on `sys.path`.
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return pytester.runpytest("-p", "no:cacheprovider", "-p", "no:xdist", *quiet, "-rA", *arguments)


def failures(result: pytest.RunResult) -> str:
    """What pytest says about failing tests, without anybody's traceback."""
    text = result.stdout.str()
    assert "Traceback" not in text and "site-packages" not in text
    return text


# -- collection --------------------------------------------------------------------------------------------------------


def test_one_test_for_each_entry_and_its_id_is_its_path(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("one")
    corpus("two")
    run(pytester).assert_outcomes(passed=2)
    collected = run(pytester, "--collect-only", "-q").outlines
    assert collected[:2] == ["corpus/fold_indptr/one.json", "corpus/fold_indptr/two.json"]


def test_verbose_lines_show_the_path_as_it_is(pytester: pytest.Pytester, corpus: Corpus) -> None:
    """A path to copy: pytest itself would turn the dots of a location into colons."""
    corpus("one")
    result = run(pytester, "-v")
    result.stdout.fnmatch_lines(["corpus/fold_indptr/one.json*PASSED*"])


def test_failure_has_the_path_in_its_header(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("one", implementation="shipped")
    result = run(pytester)
    result.stdout.fnmatch_lines(["_* entry corpus/fold_indptr/one.json _*", "FAILED corpus/fold_indptr/one.json*"])
    assert "json::" not in result.stdout.str()


@pytest.mark.parametrize("name", ["x[1]", "with space", "a.b"])
def test_odd_names(pytester: pytest.Pytester, corpus: Corpus, name: str) -> None:
    corpus(name)
    result = run(pytester, "-v")
    result.assert_outcomes(passed=1)
    assert f"corpus/fold_indptr/{name}.json PASSED" in result.stdout.str()


def test_last_failed(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("good")
    corpus("x_broken", implementation="shipped")
    pytester.runpytest("-p", "no:xdist").assert_outcomes(passed=1, failed=1)
    pytester.runpytest("-p", "no:xdist", "--lf").assert_outcomes(failed=1)


def test_id_runs_that_entry_alone(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("one")
    corpus("two")
    first = run(pytester, "--collect-only", "-q").outlines[0]
    run(pytester, first).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "argument", ["corpus", "corpus/fold_indptr", "corpus/fold_indptr/two.json", "./corpus/fold_indptr/two.json"]
)
def test_entry_is_found_however_it_is_named(pytester: pytest.Pytester, corpus: Corpus, argument: str) -> None:
    corpus("two")
    run(pytester, argument).assert_outcomes(passed=1)


def test_deselected_by_name(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("one")
    corpus("two")
    run(pytester, "-k", "two").assert_outcomes(passed=1, deselected=1)
    run(pytester, "--deselect", "corpus/fold_indptr/one.json").assert_outcomes(passed=1, deselected=1)


def test_other_json_is_left_alone(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("one")
    corpus("entry_elsewhere", "data/fold_indptr")
    others = [
        "corpus/other/settings.json",
        "corpus/top.json",
        "data/x.json",
        "corpus/fold_indptr/.hidden.json",
        "corpus/model/x.json",  # modules of capfuzz.targets that are no targets
        "corpus/__init__/x.json",
    ]
    for name in others:
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"schema": "one of their own", "target": "something else"}')
    result = run(pytester, "-v")
    result.assert_outcomes(passed=1)


def test_runs_beside_ordinary_tests(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("one")
    pytester.makepyfile("import torch\n\ndef test_cpu():\n    assert not torch.cuda.is_available() or True\n")
    run(pytester).assert_outcomes(passed=2)


# -- expect ------------------------------------------------------------------------------------------------------------


def test_fault_that_still_shows_passes(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus()
    run(pytester).assert_outcomes(passed=1)


def test_fault_that_does_not_show_fails(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus(implementation="shipped")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    assert "shipped must be capture_error:host_copy, is equivalent" in failures(result)


def test_fault_that_is_another_one_now_fails(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus(cause="synchronization")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    text = failures(result)
    assert "variant:scalar_store must be capture_error:synchronization, is capture_error:host_copy" in text
    assert "batch 2, fold_factor 2" in text, "the case is shown"


def test_mended_code_passes_and_code_that_breaks_again_fails(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("mended", implementation="user:mypackage.ops:fold", expect="equivalent")
    corpus("broken", implementation="variant:scalar_store", expect="equivalent")
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["PASSED corpus/fold_indptr/mended.json*", "FAILED corpus/fold_indptr/broken.json*"])
    assert "variant:scalar_store must be equivalent, is capture_error:host_copy" in failures(result)


def test_open_fault_is_an_expected_failure_with_its_issue(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus("linked", expect="open", issue="https://example.org/issues/7")
    corpus("other_label", expect="open", cause="synchronization")
    result = run(pytester)
    result.assert_outcomes(xfailed=2)
    assert result.ret == 0
    text = result.stdout.str()
    assert "open: capture_error:host_copy, https://example.org/issues/7" in text


def test_open_fault_that_was_mended_fails_strictly(pytester: pytest.Pytester, corpus: Corpus) -> None:
    corpus(expect="open", implementation="shipped")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    text = failures(result)
    assert "no longer shows" in text and '"expect" to "equivalent"' in text


# -- broken entries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"message": 1}, "field $.message: "),
        ({"surprise": 1}, "surprise"),
        ({"target": "nosuch"}, "field $.target: no target named 'nosuch'"),
        ({"schema": 99}, "field $.schema: version 99"),
        ({"implementation": "variant:nosuch"}, "field $.implementation: "),
        ({"case": {"values": {}, "steps": []}}, "field $.case.values."),
    ],
)
def test_broken_entry_fails_with_file_and_field(
    pytester: pytest.Pytester, corpus: Corpus, changes: dict[str, Any], says: str
) -> None:
    corpus("good")
    path = corpus("x_broken", **changes)
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    text = failures(result)
    assert f"{path}: " in text and says in text


def test_file_that_is_no_json_in_a_targets_directory_is_a_broken_entry(pytester: pytest.Pytester, corpus: Corpus) -> None:
    path = corpus("one")
    path.write_text(path.read_text()[:40])
    result = run(pytester)
    result.assert_outcomes(failed=1)
    assert f"{path}: is not JSON" in failures(result)


@pytest.mark.parametrize("content", ["", "{}", "nonsense"])
def test_whatever_lies_in_a_targets_directory_is_not_passed_over(
    pytester: pytest.Pytester, corpus: Corpus, content: str
) -> None:
    path = corpus("one")
    path.write_text(content)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    assert f"{path}: " in failures(result)


def test_every_target_is_seen_without_importing_it() -> None:
    package = Path(capfuzz.targets.__file__).parent
    assert {path.stem for path in package.glob("*.py") if _is_target(path.stem)} == set(capfuzz.targets.targets())
    assert not _is_target("../targets/fold_indptr/") and not _is_target("")


def test_entry_of_a_target_that_is_not_there_is_not_passed_over(pytester: pytest.Pytester, corpus: Corpus) -> None:
    """The directory is no target's, and the file says that it is an entry: silence would look like a pass."""
    path = corpus("one", "corpus/renamed_target", target="renamed_target")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    assert f"{path}: field $.target: no target named 'renamed_target'" in failures(result)


# -- the own function --------------------------------------------------------------------------------------------------


@pytest.fixture
def user_entries(pytester: pytest.Pytester, corpus: Corpus) -> None:
    """Two entries that expect equivalence, one known fault, and `mine.py`."""
    corpus("one", implementation="user:mine:bad", expect="equivalent")
    corpus("two", implementation="shipped", expect="equivalent")
    corpus("known", expect="fault")
    (pytester.path / "mine.py").write_text(MINE)


@pytest.mark.usefixtures("user_entries")
def test_entries_name_no_code_to_import(pytester: pytest.Pytester) -> None:
    (pytester.path / "mine.py").write_text("raise AssertionError('imported')\n")
    run(pytester).assert_outcomes(passed=3)


@pytest.mark.usefixtures("user_entries")
def test_own_function_takes_the_entries_that_expect_equivalence(pytester: pytest.Pytester) -> None:
    run(pytester, "--capfuzz-impl", "fold_indptr=mine:good").assert_outcomes(passed=3)
    result = run(pytester, "--capfuzz-impl", "fold_indptr=mine:bad")
    result.assert_outcomes(passed=1, failed=2)
    text = failures(result)
    assert text.count("user:mine:bad must be equivalent, is capture_error:host_copy") >= 2


@pytest.mark.usefixtures("user_entries")
def test_own_function_of_another_target(pytester: pytest.Pytester) -> None:
    run(pytester, "--capfuzz-impl", "other_target=mine:bad").assert_outcomes(passed=3)


@pytest.mark.usefixtures("user_entries")
def test_ini_option(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncapfuzz_impl =\n    other=x:y\n    fold_indptr=mine:bad\n")
    run(pytester).assert_outcomes(passed=1, failed=2)
    # the command line says it for this run
    run(pytester, "--capfuzz-impl", "fold_indptr=mine:good").assert_outcomes(passed=3)


@pytest.mark.usefixtures("user_entries")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("mine:good", "TARGET=MODULE:FUNCTION"),
        ("fold_indptr=mine", "write MODULE:FUNCTION"),
        ("fold_indptr=nosuchmodule:f", "no module named 'nosuchmodule'"),
        ("fold_indptr=mine:nosuch", "has no function 'nosuch'"),
        ("fold_indptr=mine:other", "calls it with indptr, fold_factor"),
    ],
)
def test_own_function_that_is_none_is_never_a_pass(pytester: pytest.Pytester, given: str, says: str) -> None:
    result = run(pytester, "--capfuzz-impl", given)
    assert result.ret != 0
    assert says in result.stdout.str() + result.stderr.str()


def test_option_is_documented(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--help")
    result.stdout.fnmatch_lines(["*--capfuzz-impl=TARGET=MODULE:FUNCTION*", "*capfuzz_impl (linelist):*"])


# -- what it costs everybody else --------------------------------------------------------------------------------------


def torch_is_imported(directory: Path) -> bool:
    """Whether a whole pytest run in that directory imports torch. A process of its own: here it is imported already."""
    program = (
        "import sys, pytest\n"
        "code = pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '--collect-only'])\n"
        "assert 'capfuzz.pytest_plugin' in sys.modules, 'the plugin is registered'\n"
        "print('torch:', 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return "torch: True" in done.stdout


def test_run_without_entries_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("def test_x():\n    pass\n")
    (tmp_path / "settings.json").write_text("{}")
    assert not torch_is_imported(tmp_path)


def test_corpus_of_somebody_else_does_not_import_torch(tmp_path: Path) -> None:
    """Any project may have a directory called corpus."""
    (tmp_path / "corpus" / "texts").mkdir(parents=True)
    (tmp_path / "corpus" / "texts" / "one.json").write_text('{"text": "words"}')
    (tmp_path / "corpus" / "texts" / "two.json").write_text('{"schema": 1, "target": "words"}')
    (tmp_path / "corpus" / "model").mkdir()
    (tmp_path / "corpus" / "model" / "one.json").write_text('{"text": "words"}')
    assert not torch_is_imported(tmp_path)
