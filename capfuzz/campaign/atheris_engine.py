"""The atheris engine: coverage of the implementation's own bytecode guides the same strategies.

atheris ends its process when it is done, so it runs in a child (`atheris_child`). The child reports over a pipe, a JSON
object a line: how many cases it has run, and the first failing case of each fault. Minimising and saving happen here. The
byte corpus is kept in `.capfuzz/atheris/<target>/`, so the next run goes on where this one stopped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from capfuzz.campaign.campaign import Campaign, CampaignOver
from capfuzz.targets import Case

BYTES_DIR = Path(".capfuzz") / "atheris"
GRACE_SECONDS = 30.0


class AtherisMissingError(RuntimeError):
    """atheris is not installed here."""

    def __init__(self) -> None:
        super().__init__(
            "the atheris engine needs the atheris package, which is not installed: `pip install 'capfuzz[atheris]'` "
            "(it has no wheels for every platform); `--engine hypothesis` works without it"
        )


class AtherisFailedError(RuntimeError):
    """The child ended with an error."""


def run(campaign: Campaign) -> None:
    """Runs the campaign in a child until its `max_time` or `max_examples`. Raises `AtherisMissingError`."""
    if importlib.util.find_spec("atheris") is None:
        raise AtherisMissingError
    subject = campaign.subject
    directory = BYTES_DIR / subject.target.name
    directory.mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    spec = {
        "target": subject.target.name,
        "implementation": subject.label,
        "device": campaign.judge.name,
        "seed": campaign.seed,
        "deadline": None if campaign.budget.max_time is None else time.time() + campaign.budget.max_time - campaign.seconds,
        "max_examples": campaign.budget.max_examples,
        "corpus": str(directory),
        "pipe": writer,
    }
    command = [sys.executable, "-m", "capfuzz.campaign.atheris_child", json.dumps(spec)]
    child = subprocess.Popen(command, pass_fds=[writer], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    try:
        with os.fdopen(reader) as lines:
            for line in lines:
                _take(campaign, json.loads(line))
        _, errors = child.communicate(timeout=GRACE_SECONDS)
    except CampaignOver:
        return
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        tail = "\n".join(errors.strip().splitlines()[-12:])
        raise AtherisFailedError(f"the atheris process ended with exit status {child.returncode}:\n{tail}")


def _take(campaign: Campaign, message: dict[str, object]) -> None:
    if "cases" in message:
        campaign.count(int(str(message["cases"])))
        return
    if "coverage" in message:
        for name, values in msgspec.convert(message["coverage"], dict[str, list[int | str]]).items():
            campaign.cover(name, set(values))
        return
    campaign.confirm(msgspec.convert(message["case"], Case))
