"""`capfuzz smoke` and `capfuzz doctor`: green on a good build, and red on a bad one."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import capfuzz as package
from capfuzz.cli import doctor as doctor_module
from capfuzz.cli import smoke as smoke_module
from capfuzz.differential import Outcome, Verdict
from capfuzz.targets import targets, variant

Run = Callable[..., Any]


def summaries(out: str) -> list[str]:
    return re.findall(r"^(\w+ findings?): 30 cases", out, re.MULTILINE)


def test_smoke_runs_every_target_and_saves_nothing(capfuzz: Run, work: Path) -> None:
    result = capfuzz("smoke", "--max-examples", "30")
    assert (result.code, result.err) == (0, "")
    assert re.findall(r"^(\w+) \(shipped\) on sim", result.out, re.MULTILINE) == list(targets())
    assert summaries(result.out) == ["no findings"] * len(targets())
    assert not (work / "corpus").exists()


def test_smoke_has_a_fixed_seed(capfuzz: Run) -> None:
    seeds = {re.findall(r"seed (\d+)", capfuzz("smoke", "--max-examples", "2").out)[0] for _ in range(2)}
    assert len(seeds) == 1
    assert "seed 17," in capfuzz("smoke", "--max-examples", "2", "--seed", "17").out


def test_smoke_default_budget(capfuzz: Run) -> None:
    out = capfuzz("smoke", "--help").out
    assert re.search(r"--max-examples .*500", re.sub(r"\s+", " ", out))


def test_smoke_goes_red(capfuzz: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke_module, "shipped", lambda target: variant(target, "scalar_store"))
    monkeypatch.setattr(smoke_module, "targets", lambda: {"fold_indptr": targets()["fold_indptr"]})
    result = capfuzz("smoke", "--max-examples", "30", "--device", "sim")
    assert result.code == 1
    assert "FINDING  capture_error:host_copy" in result.out
    assert summaries(result.out) == ["1 finding"]
    assert not (work / "corpus").exists(), "saves nothing"


def test_doctor_says_what_is_here(capfuzz: Run) -> None:
    result = capfuzz("doctor")
    assert (result.code, result.err) == (0, "")
    said = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert said["capfuzz"] == package.__version__
    assert said["python"].startswith(platform.python_version())
    assert said["torch"] == torch.__version__
    assert said["sim"] == "works"
    assert {"gpu", "numpy", "hypothesis", "msgspec", "pytest", "atheris"} <= set(said)


def test_doctor_without_an_optional_package(capfuzz: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor_module.importlib.metadata.version

    def hidden(name: str) -> str:
        if name == "atheris":
            raise doctor_module.importlib.metadata.PackageNotFoundError(name)
        return str(version(name))

    monkeypatch.setattr(doctor_module.importlib.metadata, "version", hidden)
    result = capfuzz("doctor")
    assert result.code == 0
    assert re.search(r"^atheris +not installed$", result.out, re.MULTILINE)


@pytest.mark.parametrize(
    "always",
    [Outcome(Verdict.EQUIVALENT), Outcome(Verdict.CAPTURE_ERROR, "host_copy"), Outcome(Verdict.CAPTURE_ERROR, "allocation")],
)
def test_doctor_sees_a_device_that_gives_one_verdict_for_all(
    capfuzz: Run, monkeypatch: pytest.MonkeyPatch, always: Outcome
) -> None:
    monkeypatch.setattr(doctor_module, "check", lambda *_: always)
    result = capfuzz("doctor")
    assert result.code == 3
    assert re.search(r"^sim +FAILS", result.out, re.MULTILINE)
