"""Fixtures that every kind of test uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capfuzz.devices import Device, open_device


@pytest.fixture
def device() -> Iterator[Device]:
    """The simulated device."""
    with open_device("sim") as opened:
        yield opened
