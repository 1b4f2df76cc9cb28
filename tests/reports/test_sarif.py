"""`--sarif`: valid by the 2.1.0 schema of OASIS, with what a code host needs to annotate the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from capfuzz.campaign.events import Event, Finished, Found, Started
from capfuzz.devices.trace import SourceLocation
from capfuzz.differential import Blame, Cause, Outcome, Verdict
from capfuzz.reports import Ending, SarifReport

ROOT = Path(__file__).parents[2]
Events = Callable[..., list[Event]]
Render = Callable[..., bytes]
STARTED = Started("fold_indptr", "shipped", "sim", "hypothesis", 1, 100, None)


@cache
def validator() -> jsonschema.Draft4Validator:
    schema = json.loads((ROOT / "tests" / "data" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
    jsonschema.Draft4Validator.check_schema(schema)
    return jsonschema.Draft4Validator(schema)


def valid(data: bytes) -> dict[str, Any]:
    """The one run of a report, which is valid."""
    document: dict[str, Any] = json.loads(data)
    assert [error.message for error in validator().iter_errors(document)] == []
    (run,) = document["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return dict(run)


def with_outcome(found: Found, outcome: Outcome) -> Found:
    return replace(found, finding=replace(found.finding, outcome=outcome))


def test_the_schema_can_refuse(events: Events, render: Render) -> None:
    document = json.loads(render(SarifReport, events()))
    for spoil in (
        lambda run: run["results"][0].pop("message"),
        lambda run: run["results"][0]["locations"][0]["physicalLocation"]["region"].update(startLine=0),
        lambda run: run["results"][0].update(level="fatal"),
        lambda run: run.update(unknown=1),
    ):
        spoiled = json.loads(json.dumps(document))
        spoil(spoiled["runs"][0])
        assert list(validator().iter_errors(spoiled))


def test_a_finding_is_a_result_at_its_line(events: Events, render: Render) -> None:
    run = valid(render(SarifReport, events(), Ending(1)))
    (result,) = run["results"]
    assert result["ruleId"] == "capture_error:host_copy"
    assert result["level"] == "error"
    assert result["partialFingerprints"] == {"capfuzzSignature/v1": "capture_error-host_copy-7f02ddc8"}
    (location,) = result["locations"]
    place = location["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "capfuzz/targets/fold_indptr.py"
    lines = (ROOT / "capfuzz" / "targets" / "fold_indptr.py").read_text().splitlines()
    assert lines[place["region"]["startLine"] - 1].strip() == place["region"]["snippet"]["text"] == "out[0] = 0"
    assert location["logicalLocations"] == [{"name": "scalar_store", "kind": "function"}]
    assert "Minimal case: batch 0, fold_factor 1" in result["message"]["text"]
    (rule,) = run["tool"]["driver"]["rules"]
    assert "out[:1].zero_()" in rule["help"]["text"]
    (invocation,) = run["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (True, 1)


def test_a_run_without_findings_is_valid_and_says_so(events: Events, render: Render) -> None:
    run = valid(render(SarifReport, events("fold_indptr", "shipped")))
    assert run["results"] == run["tool"]["driver"]["rules"] == []


def uri(found: Found, render: Render, file: Path) -> str:
    """Of a fault in the third line of that file."""
    outcome = Outcome(Verdict.CRASH, None, "the process ended", Blame(SourceLocation(str(file), 3, "f", "x = 1"), None))
    (result,) = valid(render(SarifReport, [STARTED, with_outcome(found, outcome)]))["results"]
    return str(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])


def test_paths_are_those_of_the_repository_wherever_it_is_run(
    finding: Callable[..., Found], render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "below")
    assert uri(finding(), render, tmp_path / "src" / "mine.py") == "src/mine.py"
    assert uri(finding(), render, tmp_path / "deep" / "below" / "mine.py") == "deep/below/mine.py"
    installed = tmp_path / ".venv" / "site-packages" / "theirs.py"
    assert uri(finding(), render, installed) == "theirs.py", "not a file of the repository"


def test_a_path_is_a_uri(
    finding: Callable[..., Found], render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert uri(finding(), render, tmp_path / "my dir" / "caf\u00e9#1.py") == "my%20dir/caf%C3%A9%231.py"


def test_a_fault_without_a_line_is_shown_where_the_implementation_begins(finding: Callable[..., Found], render: Render) -> None:
    outcome = Outcome(Verdict.CRASH, None, "the process ended")
    (result,) = valid(render(SarifReport, [STARTED, with_outcome(finding(), outcome)]))["results"]
    (location,) = result["locations"]
    assert location["message"]["text"].startswith("no line could be blamed")
    number = location["physicalLocation"]["region"]["startLine"]
    lines = (ROOT / "capfuzz" / "targets" / "fold_indptr.py").read_text().splitlines()
    assert any("def scalar_store" in line for line in lines[number - 1 : number + 1])


def test_every_verdict_has_a_rule_with_help(finding: Callable[..., Found], render: Render) -> None:
    labels = [(verdict, None) for verdict in Verdict if verdict is not Verdict.EQUIVALENT]
    labels += [(Verdict.DIVERGENCE, cause.value) for cause in Cause]
    told = [with_outcome(finding(), Outcome(verdict, cause, "m\x00")) for verdict, cause in labels]
    rules = valid(render(SarifReport, [STARTED, *told]))["tool"]["driver"]["rules"]
    assert len(rules) == len(labels)
    assert all(rule["help"]["text"] and "capfuzz says" not in rule["shortDescription"]["text"] for rule in rules)


def test_what_ended_the_run_is_a_notification(render: Render) -> None:
    told = [STARTED, Finished(5, 1.0, 0, interrupted=True, failure="a defect\x00")]
    (invocation,) = valid(render(SarifReport, told, Ending(3, problem="a defect")))["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [note["message"]["text"] for note in invocation["toolExecutionNotifications"]] == ["a defect\\x00", "a defect"]
    (invocation,) = valid(render(SarifReport, [STARTED], Ending(130, interrupted=True)))["invocations"]
    assert invocation["toolExecutionNotifications"] == [{"level": "warning", "message": {"text": "interrupted"}}]


def test_a_flaky_finding_is_a_warning(finding: Callable[..., Found], render: Render) -> None:
    (result,) = valid(render(SarifReport, [STARTED, finding(flaky=True)]))["results"]
    assert result["level"] == "warning"
