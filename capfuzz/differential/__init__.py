"""The differential check: eager against capture and replay. Usable alone; knows nothing of targets or of Hypothesis."""

from capfuzz.differential.check import Reference, check
from capfuzz.differential.explaining import explain
from capfuzz.differential.laws import Law, LawCall
from capfuzz.differential.run import SIMPLY, Drive, Feed, Implementation, callables_of
from capfuzz.differential.runner import Runner
from capfuzz.differential.schedule import SIMPLEST, Schedule
from capfuzz.differential.two_part import Mode, TwoPart
from capfuzz.differential.verdict import OUT_OF_MEMORY, Blame, Cause, Mismatch, Outcome, Verdict

__all__ = [
    "OUT_OF_MEMORY",
    "SIMPLEST",
    "SIMPLY",
    "Blame",
    "Cause",
    "Drive",
    "Feed",
    "Implementation",
    "Law",
    "LawCall",
    "Mismatch",
    "Mode",
    "Outcome",
    "Reference",
    "Runner",
    "Schedule",
    "TwoPart",
    "Verdict",
    "callables_of",
    "check",
    "explain",
]
