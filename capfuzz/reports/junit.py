"""`--junit FILE`: a test suite a campaign. A test case a finding, its name the signature; one more for the campaign itself."""

from __future__ import annotations

from junitparser import Attr, Error, Failure, IntAttr, JUnitXml, TestCase, TestSuite

from capfuzz.campaign.events import Found
from capfuzz.reports.gathered import Ending, FileReport, Ran
from capfuzz.reports.source import repository_path
from capfuzz.reports.text import clean


class _Case(TestCase):
    """With the attributes by which code hosts find the line."""

    file = Attr()
    line = IntAttr()


class JUnitReport(FileReport):
    """Findings are failures; what ended a campaign before its time is an error."""

    def render(self, ending: Ending) -> bytes:
        xml = JUnitXml("capfuzz")
        for ran in self.campaigns:
            xml.add_testsuite(self._suite(ran, ending))
        if ending.problem is not None and not any(ran.failure for ran in self.campaigns):
            suite = TestSuite("capfuzz")
            suite.add_testcase(_failed_to_run("capfuzz", "capfuzz", ending.problem))
            xml.add_testsuite(suite)
        xml.update_statistics()
        return b'<?xml version="1.0" encoding="utf-8"?>\n' + bytes(xml.tostring()) + b"\n"

    def _suite(self, ran: Ran, ending: Ending) -> TestSuite:
        suite = TestSuite(clean(ran.name))
        suite.timestamp = self.begun.isoformat(timespec="seconds")
        started = ran.started
        told = {"device": started.device, "engine": started.engine, "seed": started.seed, "cases": ran.cases}
        for name, value in told.items():
            suite.add_property(name, clean(str(value)))
        for found in ran.found:
            suite.add_testcase(self._finding(found, _class(ran)))
        suite.add_testcase(_campaign(ran, ending))
        return suite

    def _finding(self, found: Found, class_name: str) -> TestCase:
        finding, outcome = found.finding, found.finding.outcome
        case = _Case(finding.signature, class_name, 0.0)
        location = finding.location
        if location is not None:
            case.file, case.line = clean(repository_path(location)), location.line
        failure = Failure(clean(outcome.message or outcome.label), outcome.label)
        failure.text = clean(f"{self.words.describe(found)}\n")
        case.result = [failure]
        return case


def _campaign(ran: Ran, ending: Ending) -> TestCase:
    if ran.failure is not None:
        return _failed_to_run("campaign", _class(ran), ran.failure, ran.seconds)
    if ran.finished is None or ran.finished.interrupted:
        why = "interrupted" if ending.interrupted else ending.problem or "it did not come to its end"
        return _failed_to_run("campaign", _class(ran), why, ran.seconds)
    return TestCase("campaign", _class(ran), ran.seconds)


def _failed_to_run(name: str, class_name: str, why: str, seconds: float = 0.0) -> TestCase:
    case = TestCase(name, class_name, seconds)
    case.result = [Error(clean(why), "capfuzz")]
    return case


def _class(ran: Ran) -> str:
    return clean(f"capfuzz.{ran.started.target}.{ran.started.implementation.replace(':', '.')}")
