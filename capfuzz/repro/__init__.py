"""Standalone scripts that show a finding: what `capfuzz repro` prints."""

from capfuzz.repro.script import NoScriptError, script

__all__ = ["NoScriptError", "script"]
