"""Findings: a fault with its signature, its minimal case, its line, a way to mend it, and the axes that matter."""

from capfuzz.findings.finding import Finding, Mend, SourceLine, fault_name, signature, source_line
from capfuzz.findings.hints import advice, hint

__all__ = ["Finding", "Mend", "SourceLine", "advice", "fault_name", "hint", "signature", "source_line"]
