"""Where the simulated device is known to differ from a record, and why. Everything else must agree."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
"""Idiom -> the reason. A test fails if an idiom that stands here agrees after all."""
