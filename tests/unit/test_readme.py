"""README's examples do what README says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from capfuzz.campaign.audit import search
from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import Device
from capfuzz.targets import Subject, shipped
from capfuzz.workers import InProcess

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def example(word: str, path: Path) -> ModuleType:
    """The block that has `word`, as a module."""
    (block,) = (block for block in BLOCKS if word in block)
    path.write_text(block, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("readme_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_of_a_target_is_short_right_and_can_fail(device: Device, tmp_path: Path) -> None:
    module = example("window_start", tmp_path / "window_start.py")
    (block,) = (block for block in BLOCKS if "window_start" in block)
    assert len(block.splitlines()) < 40
    target = module.TARGET
    judge = InProcess(device, shipped(target))
    assert {judge.judge(case).label for case in drawn(target.strategy(), 200, 1)} == {"equivalent"}
    faulty = InProcess(device, Subject(target, "variant:no_clamp", target.variants["no_clamp"].function))
    assert search(target, target.variants["no_clamp"].label, faulty, 1, 2000).cases is not None


def test_the_example_of_the_simulated_device_prints_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("capfuzz.sim()", tmp_path / "simulated.py")
    printed = capsys.readouterr().out.strip()
    assert f"print(y)  # {printed}" in README
