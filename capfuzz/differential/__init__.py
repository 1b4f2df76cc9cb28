"""The differential check: eager against capture and replay. Usable alone; knows nothing of targets or of Hypothesis."""

from capfuzz.differential.check import Feed, Implementation, Reference, check, explain
from capfuzz.differential.laws import Law, LawCall
from capfuzz.differential.two_part import Mode, TwoPart
from capfuzz.differential.verdict import OUT_OF_MEMORY, Blame, Cause, Mismatch, Outcome, Verdict

__all__ = [
    "OUT_OF_MEMORY",
    "Blame",
    "Cause",
    "Feed",
    "Implementation",
    "Law",
    "LawCall",
    "Mismatch",
    "Mode",
    "Outcome",
    "Reference",
    "TwoPart",
    "Verdict",
    "check",
    "explain",
]
