"""Findings: a fault with its signature, its minimal case, its line, a way to mend it, and the axes that matter."""

from capfuzz.findings.finding import Finding, SourceLine, fault_name, signature, source_line
from capfuzz.findings.hints import hint, mending

__all__ = ["Finding", "SourceLine", "fault_name", "hint", "mending", "signature", "source_line"]
