"""`--junit`: XML that every reader takes, whatever the code under test says; counts that add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from junitparser import Failure, JUnitXml

from capfuzz.campaign.events import Event, Finished, Found, Started
from capfuzz.reports import Ending, JUnitReport

Events = Callable[..., list[Event]]
Render = Callable[..., bytes]
STARTED = Started("fold_indptr", "shipped", "sim", "hypothesis", 1, 100, None)


def counts(data: bytes) -> tuple[int, int, int]:
    """Tests, failures, errors: as the file says, after a look that this is what it holds."""
    root = ElementTree.fromstring(data)
    told = tuple(int(root.attrib[name]) for name in ("tests", "failures", "errors"))
    held = tuple(len(list(root.iter(name))) for name in ("testcase", "failure", "error"))
    assert told == held
    for suite in root.iter("testsuite"):
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    return told[0], told[1], told[2]


def test_a_finding_is_a_failure_with_its_line(events: Events, render: Render) -> None:
    data = render(JUnitReport, events())
    assert counts(data) == (2, 1, 0)
    (suite,) = JUnitXml.fromstring(data)
    case, campaign = suite
    assert suite.name == "fold_indptr (variant:scalar_store)"
    assert case.name == "capture_error-host_copy-7f02ddc8"
    assert case._elem.attrib["file"] == "capfuzz/targets/fold_indptr.py"
    assert int(case._elem.attrib["line"]) > 1
    (failure,) = case.result
    assert isinstance(failure, Failure)
    assert failure.type == "capture_error:host_copy"
    assert "Cannot copy between CPU and CUDA tensors" in failure.message
    assert failure.text == "all about capture_error-host_copy-7f02ddc8\n"
    assert (campaign.name, campaign.result) == ("campaign", [])
    assert {each.name: each.value for each in suite.properties()}["seed"] == "1"


def test_no_finding_is_a_test_that_passes(events: Events, render: Render) -> None:
    assert counts(render(JUnitReport, events("fold_indptr", "shipped"))) == (1, 0, 0)


def test_several_targets_are_suites_of_one_file(events: Events, render: Render) -> None:
    data = render(JUnitReport, [*events(), *events("fold_indptr", "shipped"), *events("lens_to_indptr", "shipped")])
    assert counts(data) == (4, 1, 0)
    assert len(list(JUnitXml.fromstring(data))) == 3


@pytest.mark.parametrize("text", ["\x00\x1b[31mred\x1b[0m", "a\ud800b", "\ufffe & <b> ]]> \"'", "caf\u00e9 \u2260 \U0001f600"])
def test_whatever_the_code_says_is_xml(finding: Callable[..., Found], render: Render, text: str) -> None:
    found = finding()
    told = replace(found, finding=replace(found.finding, outcome=replace(found.finding.outcome, message=text)))
    data = render(JUnitReport, [STARTED, told])
    assert counts(data) == (2, 1, 1)
    (failure,) = ElementTree.fromstring(data).iter("failure")
    assert failure.attrib["message"] == text.replace("\x00", "\\x00").replace("\x1b", "\\x1b").replace(
        "\ud800", "\\ud800"
    ).replace("\ufffe", "\\ufffe")


@pytest.mark.parametrize(
    ("told", "ending", "said"),
    [
        ([Finished(5, 1.0, 0, interrupted=True)], Ending(130, interrupted=True), "interrupted"),
        ([Finished(5, 1.0, 0, interrupted=True, failure="a defect")], Ending(3, problem="a defect"), "a defect"),
        ([], Ending(130, interrupted=True), "interrupted"),
        ([], Ending(3, problem="standard output cannot be written"), "standard output cannot be written"),
    ],
)
def test_what_ends_a_campaign_is_an_error_of_it(render: Render, told: list[Event], ending: Ending, said: str) -> None:
    data = render(JUnitReport, [STARTED, *told], ending)
    errors = [error.attrib["message"] for error in ElementTree.fromstring(data).iter("error")]
    assert errors[0] == said
    assert set(errors) == {said}


def test_a_command_that_fails_beside_its_campaigns_has_an_error(events: Events, render: Render) -> None:
    data = render(JUnitReport, events("fold_indptr", "shipped"), Ending(3, problem="no worker can be started"))
    assert counts(data) == (2, 0, 1)
