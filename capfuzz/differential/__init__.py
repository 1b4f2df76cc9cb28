"""The differential check: eager against capture and replay. Usable alone; knows nothing of targets or of Hypothesis."""

from capfuzz.differential.check import Feed, Implementation, Reference, check, explain
from capfuzz.differential.verdict import Blame, Cause, Mismatch, Outcome, Verdict

__all__ = ["Blame", "Cause", "Feed", "Implementation", "Mismatch", "Outcome", "Reference", "Verdict", "check", "explain"]
