"""Events of real campaigns, and the reports made of them. The command line's fixtures are those of tests/cli."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from capfuzz.campaign import Budget, Campaign, engines
from capfuzz.campaign.campaign import Extras
from capfuzz.campaign.events import Event, Found
from capfuzz.devices import open_device
from capfuzz.findings import Finding
from capfuzz.reports import Ending, FileReport, ReportFile, Words
from capfuzz.targets.subjects import subject_from_label
from capfuzz.workers import InProcess

_spec = importlib.util.spec_from_file_location("cli_fixtures", Path(__file__).parents[1] / "cli" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_cli = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_cli)
work, capfuzz, process = _cli.work, _cli.capfuzz, _cli.process

WORDS = Words(lambda found: f"all about {found.finding.signature}", lambda finding: f"capfuzz run {finding.target}")
Render = Callable[..., bytes]


@cache
def _events(target: str, label: str, examples: int) -> tuple[Event, ...]:
    kept: list[Event] = []
    with open_device("sim") as device:
        subject = subject_from_label(target, label)
        campaign = Campaign(
            subject,
            InProcess(device, subject),
            kept.append,
            engine="hypothesis",
            seed=1,
            budget=Budget(examples),
            corpus=None,
            extras=Extras(heat=True, trace=True),
        )
        campaign.start()
        engines()["hypothesis"](campaign)
        campaign.finish()
    return tuple(kept)


@pytest.fixture
def events() -> Callable[..., list[Event]]:
    """`events(target, label)`: what a campaign over that implementation says, on the simulated device."""
    return lambda target="fold_indptr", label="variant:scalar_store", examples=60: list(_events(target, label, examples))


@pytest.fixture
def finding(events: Callable[..., list[Event]]) -> Callable[..., Found]:
    """`finding(target, label)`: the one finding of that campaign; fields of the finding may be replaced."""

    def one(target: str = "fold_indptr", label: str = "variant:scalar_store", **changes: object) -> Found:
        (found,) = (event for event in events(target, label) if isinstance(event, Found))
        changed: Finding = replace(found.finding, **changes)  # type: ignore[arg-type]
        return replace(found, finding=changed)

    return one


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """`render(Report, events, ending)`: the bytes of a report."""

    def made(kind: type[FileReport], told: Sequence[Event], ending: Ending | None = None) -> bytes:
        path = tmp_path / "report"
        report = kind(ReportFile(path), WORDS)
        for event in told:
            report(event)
        report.end(ending or Ending(0))
        return path.read_bytes()

    return made
