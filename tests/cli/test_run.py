"""`capfuzz run`: what it prints, what it saves, how it ends."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis.configuration import set_hypothesis_home_dir, storage_directory

from capfuzz import corpus as corpora
from capfuzz.campaign import Campaign, ImplementationError
from capfuzz.devices.errors import HOST_COPY_TEXT
from capfuzz.differential import Outcome, Verdict
from capfuzz.findings import reduce as reduce_module
from capfuzz.findings.minimise import Minimised, StillFails
from capfuzz.targets import Case, InvalidCaseError, Target, get_target
from capfuzz.targets import targets as registered
from capfuzz.targets.subjects import user
from capfuzz.workers import WorkerPool

Run = Callable[..., Any]

FEW = ("--max-examples", "40")


def entries(corpus: Path = Path("corpus")) -> list[Path]:
    return sorted(corpus.rglob("*")) if corpus.exists() else []


def files(corpus: Path = Path("corpus")) -> list[Path]:
    return [path for path in entries(corpus) if path.is_file()]


def line_of(path: Path, text: str) -> int:
    return path.read_text().splitlines().index(text) + 1


def errors(stderr: str) -> list[str]:
    """The messages on standard error, without click's two lines about usage."""
    return [line for line in stderr.splitlines() if line.strip() and not line.startswith(("Usage:", "Try "))]


def one_error(result: Any) -> str:
    """The single line that a usage error must be."""
    assert result.code == 2, result
    assert "Traceback" not in result.err
    lines = errors(result.err)
    assert len(lines) == 1, lines
    assert lines[0].startswith("Error: ")
    return lines[0]


# -- nothing found -----------------------------------------------------------------------------------------------------


def test_shipped_is_clean_and_says_what_was_covered(capfuzz: Run) -> None:
    result = capfuzz("run", "fold_indptr", "--seed", "3", "--max-examples", "200")
    assert (result.code, result.err) == (0, "")
    header, *_, summary = result.out.splitlines()
    assert header.startswith("fold_indptr (shipped) on sim") and "seed 3, at most 200 cases" in header
    assert re.fullmatch(r"no findings: 200 cases in \d+\.\d s \(\d+/s\)", summary)
    axes = {line.split()[0]: line for line in result.out.splitlines() if line.startswith("  ")}
    assert "0 included" in axes["batch"]
    assert axes["fold_factor"].split(maxsplit=1)[1] == "1, 2, 3, 4, 5, 8, 16"
    assert "int32" in axes["dtype"] and "int64" in axes["dtype"]
    assert all(layout in axes["layout"] for layout in ("column", "contiguous", "offset", "strided"))
    assert "changed inputs" in result.out
    assert entries() == []


def test_one_case_is_not_cases(capfuzz: Run) -> None:
    out = capfuzz("run", "fold_indptr", "--max-examples", "1").out
    assert "at most 1 case\n" in out
    assert re.search(r"^no findings: 1 case in ", out, re.MULTILINE)


def test_two_thousand_cases_are_the_default(capfuzz: Run) -> None:
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--seed", "1", "-x", "--no-save")
    assert "at most 2000 cases" in result.out.splitlines()[0]


# -- the acceptance example --------------------------------------------------------------------------------------------


def test_scalar_store_as_in_the_readme(capfuzz: Run) -> None:
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--seed", "1", *FEW)
    assert (result.code, result.err) == (1, "")
    assert "FINDING  capture_error:host_copy  in fold_indptr (variant:scalar_store)" in result.out
    assert re.search(
        r"line +capfuzz/targets/fold_indptr\.py:\d+ in scalar_store\n +out\[0\] = 0\n +lowers to copy_", result.out
    )
    assert HOST_COPY_TEXT in result.out
    assert "batch 0, fold_factor 1, dtype int32, layout contiguous, no changed inputs" in result.out
    assert "captured  indptr = [0]" in result.out
    assert "batch: any (tried 0, 1, 2, 8, 37)" in result.out
    assert "replays: needs no changed inputs" in result.out
    assert "out[:1].zero_()" in result.out
    assert "again      capfuzz run fold_indptr --variant scalar_store --seed 1" in result.out
    assert result.out.count("FINDING") == 1
    assert re.search(r"^1 finding: 40 cases in ", result.out, re.MULTILINE)

    [path] = files()
    assert re.fullmatch(r"corpus/fold_indptr/capture_error-host_copy-[0-9a-f]{8}\.json", str(path))
    assert f"entry      {path}\n" in result.out
    entry = corpora.load(path)
    assert (entry.label, entry.expect.value) == ("capture_error:host_copy", "fault")
    assert entry.case == Case({"fold_factor": 1, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [], "start": 0}])

    replayed = capfuzz("replay", path)
    assert replayed.code == 1
    assert f"FAILED   {path}  capture_error:host_copy\n" in replayed.out
    assert "1 entry: 1 FAILED" in replayed.out


def test_divergence_shows_eager_beside_replay_and_what_was_captured(capfuzz: Run) -> None:
    result = capfuzz("run", "fold_indptr", "--variant", "host_lengths", "--seed", "1", "-x", "--no-save")
    assert result.code == 1
    assert "FINDING  divergence:stale_host_value" in result.out
    table = re.search(r"at +eager +replay +captured inputs gave\n((?: +\[\d+\].*\n)+)", result.out)
    assert table is not None
    for row in table.group(1).splitlines():
        _, eager, replay, captured = row.rsplit(maxsplit=3)
        assert eager != replay, "a row that does not differ"
        assert replay == captured, "stale: what the captured inputs gave"


# -- the user's own function -------------------------------------------------------------------------------------------


def test_own_faulty_function_is_blamed_by_its_own_line(capfuzz: Run, mine: Path) -> None:
    result = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--seed", "5", *FEW)
    assert result.code == 1
    assert "in fold_indptr (user:mine:bad)" in result.out
    assert f"mine.py:{line_of(mine, '    out[0] = 0')} in bad\n" in result.out
    assert "again      capfuzz run fold_indptr --impl mine:bad --seed 5" in result.out
    [path] = files()
    entry = corpora.load(path)
    assert (entry.implementation, entry.expect.value) == ("user:mine:bad", "equivalent")
    assert entry.blame is not None and entry.blame.file == "mine.py", "no directory of this machine in an entry"


def test_own_mended_function_is_clean(capfuzz: Run, mine: Path) -> None:
    result = capfuzz("run", "fold_indptr", "--impl", "mine:good", *FEW)
    assert result.code == 0
    assert "(user:mine:good)" in result.out and "no findings" in result.out


def test_attribute_path_in_a_package(capfuzz: Run, work: Path) -> None:
    package = work / "mypackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text(
        "class Ops:\n    @staticmethod\n    def fold(indptr, fold_factor):\n        return indptr[-1].item()\n"
    )
    result = capfuzz("run", "fold_indptr", "--impl", "mypackage.ops:Ops.fold", "-x", "--no-save", *FEW)
    assert result.code == 1
    assert "mypackage/ops.py:4 in fold" in result.out


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mine", "write MODULE:FUNCTION"),
        ("mine:", "write MODULE:FUNCTION"),
        (":good", "write MODULE:FUNCTION"),
        ("nosuchmodule:good", "no module named 'nosuchmodule'"),
        ("mine.nosuch:good", "mine.nosuch"),
        ("mine:nosuch", "mine has no function 'nosuch'; it has: good, bad"),
        ("mine:CONSTANT", "mine has no function 'CONSTANT'"),
        ("mine:good.nosuch", "good.nosuch"),
        ("mine:CONSTANT.real", "CONSTANT.real"),
    ],
)
def test_impl_that_names_nothing(capfuzz: Run, mine: Path, spec: str, says: str) -> None:
    result = capfuzz("run", "fold_indptr", "--impl", spec)
    line = one_error(result)
    assert says in line and repr(spec) in line
    assert result.out == ""
    assert entries() == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nosuchdependency\n", "importing broken failed: No module named 'nosuchdependency'"),
        ("from torch import nosuchname\n", "importing broken failed: ImportError: cannot import name 'nosuchname'"),
        ("raise RuntimeError('boom')\n", "importing broken failed: RuntimeError: boom"),
        ("def f(:\n", "importing broken failed: SyntaxError"),
        ("import sys\nsys.exit(0)\n", "importing broken failed: it ends the process (sys.exit(0))"),
        ("raise SystemExit('no weights')\n", "sys.exit('no weights')"),
        ("import pytest\npytest.importorskip('nosuchdependency')\n", "importing broken failed: Skipped: "),
    ],
)
def test_impl_whose_module_cannot_be_imported(capfuzz: Run, work: Path, source: str, says: str) -> None:
    (work / "broken.py").write_text(source)
    assert says in one_error(capfuzz("run", "fold_indptr", "--impl", "broken:f"))


@pytest.mark.parametrize("signature", ["indptr", "indptr, fold_factor, more", "a, b", "*, indptr", ""])
def test_impl_with_another_signature_is_a_usage_error_not_a_finding(capfuzz: Run, work: Path, signature: str) -> None:
    (work / "other.py").write_text(f"def f({signature}):\n    return None\n")
    line = one_error(capfuzz("run", "fold_indptr", "--impl", "other:f", "--no-save", *FEW))
    assert "other:f" in line and "fold_factor" in line


@pytest.mark.parametrize(
    "signature",
    ["indptr, fold_factor", "fold_factor, indptr, out=None", "**kwargs", "indptr, **kwargs", "*, indptr, fold_factor"],
)
def test_impl_that_can_be_called_so_is_run(capfuzz: Run, work: Path, signature: str) -> None:
    (work / "other.py").write_text(f"def f({signature}):\n    return None\n")
    result = capfuzz("run", "fold_indptr", "--impl", "other:f", "--no-save", "-x", *FEW)
    assert result.code == 1
    assert "FINDING  reference_mismatch" in result.out


@pytest.mark.parametrize("spec", ["other:positional", "other:Ops.method"])
def test_impl_that_cannot_be_called_by_name(capfuzz: Run, work: Path, spec: str) -> None:
    (work / "other.py").write_text(
        "def positional(indptr, fold_factor, /):\n    pass\n\n\n"
        "class Ops:\n    def method(self, indptr, fold_factor):\n        pass\n"
    )
    assert spec in one_error(capfuzz("run", "fold_indptr", "--impl", spec))


def test_impl_whose_decorator_supplies_an_argument(capfuzz: Run, work: Path) -> None:
    (work / "other.py").write_text(
        "import functools\n\nfrom capfuzz.targets.fold_indptr import fold_indptr\n\n\n"
        "def prepared(function):\n    @functools.wraps(function)\n    def wrapper(**arguments):\n"
        "        return function(workspace=None, **arguments)\n\n    return wrapper\n\n\n"
        "@prepared\ndef f(indptr, fold_factor, workspace):\n    return fold_indptr(indptr, fold_factor)\n"
    )
    assert capfuzz("run", "fold_indptr", "--impl", "other:f", "--max-examples", "5").code == 0


def test_impl_without_a_signature_is_let_through(capfuzz: Run) -> None:
    result = capfuzz("run", "fold_indptr", "--impl", "builtins:max", "--no-save", "-x", "--max-examples", "5")
    assert result.code == 1
    assert "FINDING  eager_error:TypeError" in result.out


def test_impl_of_a_target_whose_simplest_case_is_not_legal(monkeypatch: pytest.MonkeyPatch, mine: Path) -> None:
    def build(case: Case) -> NoReturn:
        raise InvalidCaseError("case.steps", "must have two rows")

    target = replace(get_target("fold_indptr"), build=build)
    assert user(target, "mine:good").label == "user:mine:good"
    (mine.parent / "other.py").write_text("def f(indptr):\n    pass\n")
    with pytest.raises(ImplementationError, match="fold_factor"):
        user(target, "other:f")


# -- names and options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch"], ["no target named 'nosuch'", "capfuzz list"]),
        (["fold_indptrr"], ["no target named 'fold_indptrr'; did you mean 'fold_indptr'?"]),
        (["fold-indptr"], ["did you mean 'fold_indptr'?"]),
        (["fold_indptr", "nosuch"], ["no target named 'nosuch'"]),
        (["fold_indptr", "--variant", "scalar_stor"], ["no variant named 'scalar_stor'; did you mean 'scalar_store'?"]),
        (["fold_indptr", "--variant", "nosuch"], ["no variant named 'nosuch'", "capfuzz list fold_indptr"]),
        (["fold_indptr", "--variant", "scalar_store", "--impl", "mine:bad"], ["--variant", "--impl"]),
        (["fold_indptr", "--max-exampels", "3"], ["No such option", "--max-exampels", "--max-examples"]),
        (["fold_indptr", "--max-examples", "0"], ["--max-examples"]),
        (["fold_indptr", "--max-examples", "many"], ["--max-examples", "many"]),
        (["fold_indptr", "--max-time", "0"], ["--max-time"]),
        (["fold_indptr", "--max-time", "nan", "--max-examples", "2"], ["--max-time", "nan"]),
        (["fold_indptr", "--max-time", "inf", "--max-examples", "2"], ["--max-time", "inf"]),
        (["fold_indptr", "--max-time", "-1", "--max-examples", "2"], ["--max-time", "-1"]),
        (["fold_indptr", "--max-time", "soon"], ["--max-time", "soon"]),
        (["fold_indptr", "--max-findings", "0"], ["--max-findings"]),
        (["fold_indptr", "--seed", "-1"], ["--seed"]),
        (["fold_indptr", "--seed", str(2**32)], ["--seed"]),
        (["fold_indptr", "--engine", "hypothesi"], ["--engine", "hypothesis", "atheris"]),
        (["fold_indptr", "--device", "cuda"], ["--device", "sim"]),
        ([], ["TARGET"]),
    ],
)
def test_what_cannot_be_run_is_one_line_that_helps(capfuzz: Run, arguments: list[str], says: list[str]) -> None:
    result = capfuzz("run", *arguments)
    line = one_error(result)
    for text in says:
        assert text in line
    assert result.out == "", "nothing may run before every argument is known to be good"


# -- seeds and budgets -------------------------------------------------------------------------------------------------


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Every case that a campaign is given."""
    cases: list[Case] = []
    original = Campaign.try_case

    def try_case(self: Campaign, case: Case) -> None:
        cases.append(case)
        original(self, case)

    monkeypatch.setattr(Campaign, "try_case", try_case)
    return cases


def test_same_seed_same_cases_same_entry(capfuzz: Run, tried: list[Case]) -> None:
    outs = []
    for corpus in ("one", "two"):
        result = capfuzz("run", "fold_indptr", "--variant", "accumulating_workspace", "--seed", "9", *FEW, "--corpus", corpus)
        assert result.code == 1
        outs.append(re.sub(r"\d+\.\d s \(\d+/s\)", "TIME", result.out.replace(corpus, "CORPUS")))
    assert len(tried) == 80
    assert tried[:40] == tried[40:]
    assert outs[0] == outs[1]
    [one], [two] = files(Path("one")), files(Path("two"))
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_another_seed_draws_other_cases(capfuzz: Run, tried: list[Case]) -> None:
    for seed in (9, 10):
        assert capfuzz("run", "fold_indptr", "--seed", seed, "--max-examples", "20").code == 0
    assert tried[:20] != tried[20:]


def test_without_a_seed_a_new_one_is_printed_and_repeats(capfuzz: Run, tried: list[Case]) -> None:
    seeds = []
    for _ in range(2):
        out = capfuzz("run", "fold_indptr", "--max-examples", "10").out
        found = re.search(r"seed (\d+)", out)
        assert found is not None
        seeds.append(found.group(1))
    assert seeds[0] != seeds[1]
    capfuzz("run", "fold_indptr", "--max-examples", "10", "--seed", seeds[0])
    assert tried[:10] == tried[20:]


def test_max_time_is_kept(capfuzz: Run) -> None:
    begun = time.monotonic()
    result = capfuzz("run", "fold_indptr", "--max-time", "1")
    assert 1.0 <= time.monotonic() - begun < 3.0
    assert result.code == 0
    assert "at most 1 s" in result.out.splitlines()[0], "no number of cases beside the time"
    summary = re.search(r"no findings: (\d+) cases in (\d+\.\d) s", result.out)
    assert summary is not None
    assert int(summary.group(1)) > 10
    assert 1.0 <= float(summary.group(2)) < 3.0
    assert "combinations" not in result.out, "out of time is not out of cases"


SLOW = """\
import time

from capfuzz.targets.fold_indptr import scalar_store


def bad(indptr, fold_factor):
    time.sleep({seconds})
    return scalar_store(indptr, fold_factor)
"""


def test_max_time_is_kept_while_minimising(capfuzz: Run, work: Path) -> None:
    """A slow function: minimising alone would take many times as long. What was found is reported, and what is not known."""
    (work / "mine.py").write_text(SLOW.format(seconds=0.1))
    begun = time.monotonic()
    result = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--seed", "2", "--max-time", "0.5")
    assert time.monotonic() - begun < 4.0
    assert result.code == 1
    assert "FINDING  capture_error:host_copy" in result.out
    assert "note       not fully minimised, axes not varied: time ran out\n" in result.out
    assert "  axes  " not in result.out
    assert len(files()) == 1


def test_max_time_is_kept_while_axes_are_varied(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minimise = reduce_module.minimise

    def all_of_the_time(target: Target, case: Case, still_fails: StillFails, max_seconds: float) -> Minimised:
        assert 0 < max_seconds <= 3.0
        done = minimise(target, case, still_fails, max_seconds)
        assert done.complete
        time.sleep(max_seconds)
        return done

    monkeypatch.setattr(reduce_module, "minimise", all_of_the_time)
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--seed", "2", "--max-time", "3")
    assert result.code == 1
    assert "batch 0, fold_factor 1, dtype int32, layout contiguous, no changed inputs" in result.out
    assert "note       axes not varied: time ran out\n" in result.out


def test_fault_that_does_not_show_again_is_flaky_not_another_fault(capfuzz: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows while it is minimised and no more when the smallest case is run for the report."""

    def varied(*_: object) -> dict[str, str]:
        monkeypatch.setattr(WorkerPool, "judge", lambda *a: Outcome(Verdict.EQUIVALENT))
        return {}

    monkeypatch.setattr(reduce_module, "axes_that_matter", varied)
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--max-examples", "1")
    assert "FINDING  capture_error:host_copy" in result.out
    assert "flaky      did not show every time" in result.out


def test_whichever_limit_comes_first(capfuzz: Run) -> None:
    result = capfuzz("run", "fold_indptr", "--max-time", "60", "--max-examples", "15")
    assert result.code == 0
    assert "at most 15 cases or 60 s" in result.out
    assert "no findings: 15 cases" in result.out


def test_max_findings_and_stop_at_the_first(capfuzz: Run, mine: Path) -> None:
    def campaign(*limit: str) -> tuple[int, int]:
        result = capfuzz("run", "fold_indptr", "--impl", "mine:two_faults", "--seed", "2", "--no-save", *FEW, *limit)
        assert result.code == 1
        summary = re.search(r"^(\d) findings?: (\d+) cases?", result.out, re.MULTILINE)
        assert summary is not None
        assert result.out.count("FINDING") == int(summary.group(1))
        return int(summary.group(1)), int(summary.group(2))

    assert campaign() == (2, 40)
    assert campaign("--max-findings", "2") < (2, 40)
    for limit in (["-x"], ["--max-findings", "1"]):
        assert campaign(*limit) == (1, 1)


# -- the corpus --------------------------------------------------------------------------------------------------------


def test_no_save_writes_nothing(capfuzz: Run) -> None:
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--no-save", "-x")
    assert result.code == 1
    assert "FINDING" in result.out and "  entry" not in result.out
    assert entries() == []


def test_a_run_leaves_nothing_behind_but_its_corpus(process: Run, work: Path) -> None:
    """In a process of its own: what the libraries below write depends on it."""
    assert process("run", "fold_indptr", "--variant", "scalar_store", "--no-save", "--max-examples", "200").code == 1
    assert sorted(path.name for path in work.iterdir()) == []


def test_cache_of_hypothesis_lies_where_the_user_has_it(process: Run, work: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "cache")}
    assert process("run", "fold_indptr", "--max-examples", "20", env=environment).code == 0
    assert list(work.iterdir()) == []


def test_setting_of_hypothesis_is_put_back(capfuzz: Run, tmp_path: Path) -> None:
    before = storage_directory("x", intent_to_write=False).path
    set_hypothesis_home_dir(tmp_path)
    try:
        capfuzz("run", "fold_indptr", "--max-examples", "2")
        assert storage_directory("x", intent_to_write=False).path == tmp_path / "x"
    finally:
        set_hypothesis_home_dir(before.parent)


def test_second_run_into_a_corpus_keeps_the_entry(capfuzz: Run) -> None:
    arguments = ("run", "fold_indptr", "--variant", "scalar_store", "-x", "--corpus", "here")
    first = capfuzz(*arguments, "--seed", "1")
    [path] = files(Path("here"))
    before = path.read_bytes()
    second = capfuzz(*arguments, "--seed", "2")
    assert (first.code, second.code) == (1, 1)
    assert "already in the corpus" not in first.out
    assert f"{path} (already in the corpus)" in second.out
    assert files(Path("here")) == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize("blocked", ["blocker/below", "has/fold_indptr"])
def test_corpus_that_cannot_be_written_loses_no_finding(capfuzz: Run, work: Path, blocked: str) -> None:
    (work / "blocker").write_text("a file where a directory would have to be")
    (work / "has").mkdir()
    (work / "has" / "fold_indptr").write_text("the same, one level down")
    corpus = "has" if blocked.startswith("has") else blocked
    result = capfuzz("run", "fold_indptr", "--variant", "scalar_store", "--seed", "1", *FEW, "--corpus", corpus)
    assert result.code == 1
    assert "Traceback" not in result.err
    assert "FINDING  capture_error:host_copy" in result.out
    assert re.search(rf"not saved +{corpus}.*cannot be written", result.out)
    assert "  entry" not in result.out
    assert "1 finding: 40 cases" in result.out, "the campaign goes on"


def test_corpus_that_is_a_file(capfuzz: Run, work: Path) -> None:
    (work / "file").write_text("")
    result = capfuzz("run", "fold_indptr", "--corpus", "file", *FEW)
    assert "file" in one_error(result)
    assert result.out == ""


# -- several targets ---------------------------------------------------------------------------------------------------


def test_targets_share_the_time(capfuzz: Run) -> None:
    begun = time.monotonic()
    result = capfuzz("run", "fold_indptr", "lens_to_indptr", "--max-time", "2", "--no-save")
    assert result.code == 0
    assert "at most 1 s" in result.out
    assert result.out.count("no findings") == 2
    assert time.monotonic() - begun < 20


def test_all_runs_every_target(capfuzz: Run) -> None:
    result = capfuzz("run", "--all", "--max-examples", "1", "--no-save")
    assert result.code == 0
    for name in registered():
        assert f"{name} (shipped)" in result.out


@pytest.mark.parametrize("arguments", [(), ("--all", "fold_indptr")])
def test_either_targets_or_all(capfuzz: Run, arguments: tuple[str, ...]) -> None:
    assert "--all" in one_error(capfuzz("run", *arguments))


def test_stats_count_values_and_pairs(capfuzz: Run) -> None:
    result = capfuzz("run", "lens_to_indptr", *FEW, "--stats", "--no-save", "--seed", "1")
    counts = {a: int(n) for a, n in re.findall(r"(int32|int64): (\d+)", result.out)}
    assert sum(counts.values()) == 40
    pairs = re.search(r"dtype with tail: (.*)", result.out)
    assert pairs is not None
    assert sum(int(n) for n in re.findall(r": (\d+)", pairs[1])) == 40
    assert "--engine" in one_error(capfuzz("run", "fold_indptr", "--stats", "--engine", "atheris"))
