"""`--sarif FILE`: SARIF 2.1.0, by which code hosts show a finding at its line.

One SARIF run for the whole command: hosts refuse several runs of one tool in one file. A rule a verdict and cause.
"""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

import msgspec

from capfuzz.campaign.events import Found
from capfuzz.devices.trace import Location, SourceLocation
from capfuzz.findings import hint
from capfuzz.reports.gathered import Ending, FileReport
from capfuzz.reports.source import implementation_begins, repository_path
from capfuzz.reports.text import case_line, clean
from capfuzz.targets import get_target
from capfuzz.version import VERSION

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "capfuzzSignature/v1"

# What each verdict says, for a reader who meets it in a code host.
_VERDICTS = {
    "capture_error": "The capture of a CUDA graph fails; eagerly the same code runs.",
    "replay_error": "The replay of a captured graph raises an error; eagerly the same code runs.",
    "divergence": "A replay gives another answer than the eager call on the same inputs.",
    "dangling_buffer": "The graph reads memory that its owner has freed before the replay.",
    "reference_mismatch": "The eager answer is not the one of the reference.",
    "invariant": "The eager answer breaks a law that holds whatever the inputs.",
    "nondeterministic": "Eager gives two answers on the same inputs.",
    "eager_error": "The eager call raises an error on a legal case.",
    "crash": "The implementation ends its process.",
    "hang": "The implementation does not come to an end.",
}

Json = dict[str, Any]


class SarifReport(FileReport):
    def render(self, ending: Ending) -> bytes:
        found = list(self.found)
        rules: dict[str, Json] = {}
        for each in found:
            rules.setdefault(each.finding.outcome.label, _rule(each))
        ids = list(rules)
        driver = {"name": "capfuzz", "version": VERSION, "rules": list(rules.values())}
        run = {
            "tool": {"driver": driver},
            "columnKind": "unicodeCodePoints",
            "invocations": [self._invocation(ending)],
            "results": [self._result(each, ids.index(each.finding.outcome.label)) for each in found],
        }
        document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"

    def _invocation(self, ending: Ending) -> Json:
        problems = [each for each in (*(ran.failure for ran in self.campaigns), ending.problem) if each is not None]
        notes = [{"level": "error", "message": {"text": clean(each)}} for each in dict.fromkeys(problems)]
        if ending.interrupted:
            notes.append({"level": "warning", "message": {"text": "interrupted"}})
        return {
            "executionSuccessful": not notes,
            "exitCode": ending.exit_status,
            "startTimeUtc": _time(self.begun),
            "endTimeUtc": _time(datetime.now(timezone.utc)),
            "toolExecutionNotifications": notes,
            "properties": {"python": platform.python_version()},
        }

    def _result(self, found: Found, rule: int) -> Json:
        finding, outcome = found.finding, found.finding.outcome
        case = case_line(get_target(finding.target), finding.case)
        said = f": {outcome.message}" if outcome.message else ""
        again = self.words.again(finding)
        text = f"{outcome.label} in {finding.target} ({finding.implementation}){said}\nMinimal case: {case}.\nAgain: {again}"
        return {
            "ruleId": outcome.label,
            "ruleIndex": rule,
            "level": "warning" if finding.flaky else "error",
            "message": {"text": clean(text)},
            "locations": _locations(found),
            "partialFingerprints": {FINGERPRINT: finding.signature},
            "properties": {
                "target": finding.target,
                "implementation": clean(finding.implementation),
                "case": msgspec.to_builtins(finding.case),
                "axes": finding.axes,
                "seed": finding.seed,
                "flaky": finding.flaky,
                "again": clean(again),
            },
        }


def _rule(found: Found) -> Json:
    outcome = found.finding.outcome
    about = _VERDICTS.get(outcome.verdict.value, f"capfuzz says {outcome.verdict.value}.")
    advice = hint(outcome.label) or "Run the case again with the command that the result shows."
    return {
        "id": outcome.label,
        "name": "".join(part.capitalize() for part in outcome.label.replace(":", "_").split("_")),
        "shortDescription": {"text": about},
        "fullDescription": {"text": f"{about} Cause: {outcome.cause}." if outcome.cause else about},
        "help": {"text": f"How to mend it: {advice}", "markdown": f"**How to mend it:** {advice}"},
        "defaultConfiguration": {"level": "error"},
    }


def _locations(found: Found) -> list[Json]:
    """The guilty line; where none could be blamed, the one that the implementation begins at: hosts show no result without."""
    location = found.finding.location
    message = None
    if location is None:
        location, message = implementation_begins(found.finding), "no line could be blamed; the implementation begins here"
    if location is None:
        return []
    place: Json = {"physicalLocation": _physical(location)}
    if location.function.isidentifier():
        place["logicalLocations"] = [{"name": location.function, "kind": "function"}]
    return [place if message is None else {**place, "message": {"text": message}}]


def _physical(location: Location | SourceLocation) -> Json:
    region: Json = {"startLine": max(1, location.line)}
    if location.text:
        region["snippet"] = {"text": clean(location.text)}
    return {
        "artifactLocation": {"uri": quote(clean(repository_path(location))), "uriBaseId": "%SRCROOT%"},
        "region": region,
    }


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
