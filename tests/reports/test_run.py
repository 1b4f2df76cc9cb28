"""`capfuzz run` with reports: one file for all targets, written however the run ends; a file that cannot be is told in time."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import hypothesis.core
import pytest

from capfuzz.campaign import campaign as campaign_module
from capfuzz.cli import run as run_module
from capfuzz.cli.console import console
from capfuzz.reports import html as html_module
from capfuzz.targets import mending as mending_module
from capfuzz.targets import op_trace as op_trace_module

Run = Callable[..., Any]
FAULTY = ("run", "fold_indptr", "--variant", "scalar_store", "--max-examples", "20", "--seed", "1", "--no-save")
ALL = ("--html", "x.html", "--sarif", "x.sarif", "--junit", "x.xml")

MINE = """\
import os
import pathlib
import time

import torch

from capfuzz.targets.fold_indptr import fold_indptr as good, scalar_store


def waits(indptr, fold_factor):
    if pathlib.Path("wait").exists() and torch.cuda.is_current_stream_capturing():
        pathlib.Path("here").touch()
        time.sleep(600)
    return good(indptr, fold_factor)


def together(indptr, fold_factor):
    out = good(indptr, fold_factor)
    if (indptr.numel() - 1) * fold_factor >= 8:
        out[0] = 0
    return out


def dies(indptr, fold_factor):
    if torch.cuda.is_current_stream_capturing():
        os.kill(os.getpid(), 11)
    return good(indptr, fold_factor)
"""


@pytest.fixture(autouse=True)
def mine(work: Path) -> None:
    (work / "mine.py").write_text(MINE)


def results(work: Path) -> list[str]:
    """The rules of the SARIF report's results; the other two reports agree with it on how many there are."""
    (run,) = json.loads((work / "x.sarif").read_text())["runs"]
    rules = [result["ruleId"] for result in run["results"]]
    assert len(list(ElementTree.parse(work / "x.xml").iter("failure"))) == len(rules)
    assert (work / "x.html").read_text().count('<section class="finding"') == len(rules)
    return rules


def test_every_report_has_the_finding_that_the_text_has(capfuzz: Run, work: Path) -> None:
    result = capfuzz(*FAULTY, *ALL)
    assert result.code == 1
    assert result.out.count("FINDING  capture_error:host_copy") == 1
    assert results(work) == ["capture_error:host_copy"]
    failure = next(ElementTree.parse(work / "x.xml").iter("failure"))
    assert failure.text is not None
    assert failure.text.startswith("FINDING  capture_error:host_copy  in fold_indptr (variant:scalar_store)")
    page = (work / "x.html").read_text()
    assert "capfuzz run fold_indptr --variant scalar_store --seed 1" in page
    assert "The capture ended with" in page
    assert sorted(os.listdir(work)) == ["mine.py", "x.html", "x.sarif", "x.xml"]


def test_several_targets_go_into_one_file(capfuzz: Run, work: Path) -> None:
    result = capfuzz("run", "fold_indptr", "lens_to_indptr", "--max-examples", 5, "--no-save", *ALL)
    assert result.code == 0
    assert results(work) == []
    suites = [suite.attrib["name"] for suite in ElementTree.parse(work / "x.xml").iter("testsuite")]
    assert suites == ["fold_indptr (shipped)", "lens_to_indptr (shipped)"]
    page = (work / "x.html").read_text()
    assert "no findings: 2 campaigns" in page
    assert page.count("<h3>fold_indptr") == page.count("<h3>lens_to_indptr") == 1


def test_two_axes_that_interact_are_mapped(capfuzz: Run, work: Path) -> None:
    result = capfuzz("run", "fold_indptr", "--impl", "mine:together", "--max-examples", 60, "--seed", 1, "--json", "--no-save")
    (found,) = [json.loads(line) for line in result.out.splitlines() if '"record":"finding"' in line]
    heat = found["heat"]
    assert (heat["rows"], heat["columns"], heat["interact"]) == ("batch", "fold_factor", True)
    for batch, cells in zip(heat["row_values"], heat["cells"], strict=True):
        for fold, cell in zip(heat["column_values"], cells, strict=True):
            assert cell == ("fails" if batch * fold >= 8 else "holds")


def test_nobody_pays_for_a_map_or_a_trace_that_no_report_shows(capfuzz: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object, **__: object) -> NoReturn:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(campaign_module.Campaign, "_heat", unwanted)
    monkeypatch.setattr(campaign_module.Campaign, "_trace", unwanted)
    assert capfuzz(*FAULTY, "--sarif", "x.sarif", "--junit", "x.xml").code == 1
    assert capfuzz(*FAULTY, "--json").code == 3
    assert capfuzz(*FAULTY, "--html", "x.html").code == 3


# -- implementations that do harm --------------------------------------------------------------------------------------


def test_an_implementation_that_dies_costs_the_page_its_trace_only(capfuzz: Run, work: Path) -> None:
    result = capfuzz("run", "fold_indptr", "--impl", "mine:dies", "--max-examples", 8, "--seed", 1, "--no-save", *ALL)
    assert result.code == 1
    assert results(work) == ["crash"]
    assert "No trace: taking it ended with crash: the process ended: killed by SIGSEGV" in (work / "x.html").read_text()


def test_a_defect_of_the_trace_costs_the_page_its_trace_only(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("planted defect")

    monkeypatch.setattr(op_trace_module, "trace_capture", fail)
    result = capfuzz(*FAULTY, *ALL)
    assert result.code == 1
    assert results(work) == ["capture_error:host_copy"]
    assert "No trace: capfuzz failed to take it: RuntimeError: planted defect." in (work / "x.html").read_text()


def test_a_defect_of_the_search_for_an_edit_costs_the_finding_its_edit_only(
    capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("planted defect")

    monkeypatch.setattr(mending_module, "edits", fail)
    result = capfuzz("run", "fold_indptr", "--variant", "empty_batch", "--max-examples", 60, "--seed", 1)
    assert result.code == 1
    assert "note       capfuzz failed in the search for an edit that mends it: RuntimeError: planted defect" in result.out
    assert "mend       eager itself is wrong here" in result.out and len(list(Path("corpus").rglob("*.json"))) == 1


# -- ends before its time ----------------------------------------------------------------------------------------------


def interrupt_when(path: Path) -> threading.Thread:
    """Ctrl-C as soon as there is that file."""

    def wait() -> None:
        deadline = time.monotonic() + 30.0
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_ctrl_c_leaves_the_reports_of_what_was_found(capfuzz: Run, work: Path) -> None:
    """Two targets; the first one has a finding, in the second one the implementation waits."""
    source = MINE + (
        "\n\ndef first_bad(**inputs):\n"
        "    if 'indptr' in inputs:\n        return scalar_store(**inputs)\n"
        "    pathlib.Path('here').touch()\n    time.sleep(600)\n"
    )
    (work / "mine.py").write_text(source)
    watcher = interrupt_when(work / "here")
    arguments = ("--impl", "mine:first_bad", "--max-examples", 20, "--seed", 1, "--no-save", "--case-timeout", 60)
    result = capfuzz("run", "fold_indptr", "lens_to_indptr", *arguments, *ALL)
    watcher.join()
    assert result.code == 130
    assert results(work) == ["capture_error:host_copy"]
    errors = [error.attrib["message"] for error in ElementTree.parse(work / "x.xml").iter("error")]
    assert errors == ["interrupted"]
    assert "The run was interrupted" in (work / "x.html").read_text()


def test_ctrl_c_while_the_map_is_made_loses_no_finding(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign_module, "heat_map", interrupted)
    result = capfuzz(*FAULTY, *ALL)
    assert result.code == 130
    assert "axes       batch: any" in result.out, "the case is the minimal one"
    assert results(work) == ["capture_error:host_copy"]
    page = (work / "x.html").read_text()
    assert "No map: the run ended before." in page
    assert "No trace: not taken: interrupted." in page


def test_ctrl_c_before_hypothesis_has_begun_is_ctrl_c(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(hypothesis.core, "ConjectureRunner", interrupted)
    assert capfuzz(*FAULTY, *ALL).code == 130
    assert results(work) == []


def test_a_defect_leaves_the_reports_of_what_was_found(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("planted defect")

    monkeypatch.setattr(campaign_module, "reduced", fail)
    result = capfuzz(*FAULTY, *ALL, "--json")
    assert result.code == 3
    assert results(work) == ["capture_error:host_copy"]
    page = (work / "x.html").read_text()
    assert "The run failed before its end" in page
    assert "RuntimeError: planted defect" in page
    assert "what was found is above" not in page
    (run,) = json.loads((work / "x.sarif").read_text())["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False
    records = [json.loads(line) for line in result.out.splitlines()]
    assert [record["record"] for record in records] == ["started", "finding", "finished", "ended"]
    assert "planted defect" in records[-2]["failure"]
    assert "planted defect" in records[-1]["problem"]
    assert records[-1]["exit_status"] == 3


def test_nobody_reads_the_text_and_the_reports_are_written(work: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "capfuzz", *FAULTY, *ALL]
    done = subprocess.run(command, cwd=work, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (130, "")
    assert results(work) == []


class Filling(io.StringIO):
    """A file whose disk is full when a finding comes."""

    def write(self, text: str) -> int:
        if "FINDING" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_a_finding_that_cannot_be_printed_is_in_the_reports(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "console", lambda: type(console())(file=Filling(), soft_wrap=True))
    result = capfuzz(*FAULTY, *ALL)
    assert (result.code, result.err) == (3, "Error: standard output cannot be written: No space left on device\n")
    assert results(work) == ["capture_error:host_copy"]


# -- files that cannot be written --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--html", "no/x.html"], "Error: --html no/x.html: there is no directory no\n"),
        (["--sarif", "."], "Error: --sarif .: is a directory; give the name of a file\n"),
        (["--junit", "/proc/x.xml"], "Error: --junit /proc/x.xml: cannot be written: "),
        (["--html", "/dev/null"], "Error: --html /dev/null: is not a regular file"),
        (["--html", "x", "--junit", "./x"], "Error: --junit and --html name one file, x; give each its own\n"),
    ],
)
def test_a_file_that_cannot_be_is_a_usage_error_before_the_run(
    capfuzz: Run, work: Path, arguments: list[str], said: str
) -> None:
    for json_flag in ([], ["--json"]):
        result = capfuzz(*FAULTY, *arguments, *json_flag)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(said)
        assert len(result.err.splitlines()) == 1
    assert os.listdir(work) == ["mine.py"]


def test_a_usage_error_leaves_old_reports_alone(capfuzz: Run, work: Path) -> None:
    (work / "x.html").write_text("old")
    assert capfuzz("run", "nothing", *ALL).code == 2
    assert (work / "x.html").read_text() == "old"
    assert not (work / "x.sarif").exists()


def test_a_disk_that_is_full_at_the_end_is_status_3_and_the_findings_are_printed(process: Run, work: Path) -> None:
    """No file may grow beyond 2 KiB: the JUnit report fits, the two others do not."""
    (work / "x.html").write_text("old")

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    result = process(*FAULTY, *ALL, preexec_fn=small_files)
    assert result.code == 3
    assert "FINDING  capture_error:host_copy" in result.out
    assert "1 finding: 20 cases" in result.out
    assert result.err.count("a report was not written: x.") == 2
    assert "x.html: cannot be written: File too large" in result.err
    assert (work / "x.html").read_text() == "old"
    assert len(list(ElementTree.parse(work / "x.xml").iter("failure"))) == 1
    assert sorted(os.listdir(work)) == ["mine.py", "x.html", "x.xml"]


def test_a_report_that_cannot_be_made_costs_the_others_nothing(
    capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("planted defect")

    monkeypatch.setattr(html_module, "case_fields", fail)
    result = capfuzz(*FAULTY, *ALL, "--json")
    assert result.code == 3
    assert "capfuzz failed to make a report (HtmlReport): RuntimeError: planted defect" in result.err
    assert not (work / "x.html").exists()
    assert (work / "x.sarif").exists()
    assert (work / "x.xml").exists()
    last = json.loads(result.out.splitlines()[-1])
    assert (last["exit_status"], last["findings"]) == (3, 1)
