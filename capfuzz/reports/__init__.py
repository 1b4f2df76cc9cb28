"""Reports of a run: JSON lines, JUnit, SARIF and one HTML page, each a handler of campaign events.

One command may run several campaigns; all of them go into one report. The JSON lines are written as things happen; the others
are files (`files`), written when the command ends, however it ends.
"""

from capfuzz.reports.files import ReportError, ReportFile
from capfuzz.reports.gathered import Ending, FileReport, Words
from capfuzz.reports.html import HtmlReport
from capfuzz.reports.json_lines import JsonLines
from capfuzz.reports.junit import JUnitReport
from capfuzz.reports.sarif import SarifReport

__all__ = [
    "Ending",
    "FileReport",
    "HtmlReport",
    "JUnitReport",
    "JsonLines",
    "ReportError",
    "ReportFile",
    "SarifReport",
    "Words",
]
