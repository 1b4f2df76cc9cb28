"""`capfuzz doctor`"""

from __future__ import annotations

import importlib.metadata
import platform

import click
import torch

from capfuzz.cli.console import console
from capfuzz.cli.exit_code import ExitCode
from capfuzz.devices import open_device
from capfuzz.differential import Verdict, check
from capfuzz.targets import Case, get_target
from capfuzz.version import VERSION


@click.command()
def doctor() -> int:
    """Say what this machine has, and check that the simulated device tells a known fault from its mended form."""
    out = console()
    out.print(f"capfuzz     {VERSION}")
    out.print(f"python      {platform.python_version()} ({platform.machine()})")
    out.print(f"torch       {torch.__version__}")
    out.print(f"gpu         {_gpu()}")
    for package in ("numpy", "hypothesis", "msgspec", "pytest", "atheris"):
        out.print(f"{package:<11} {_version(package)}")
    healthy = _simulated_device_works()
    out.print(f"sim         {'works' if healthy else 'FAILS: a known fault and its mended form get the wrong verdicts'}")
    return ExitCode.OK if healthy else ExitCode.HARNESS


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none that torch sees"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _simulated_device_works() -> bool:
    target = get_target("fold_indptr")
    step: dict[str, int | list[int]] = {"lengths": [2, 0], "start": 0}
    feeds = target.feeds(Case({"fold_factor": 2, "dtype": "int32", "layout": "contiguous"}, [step]))
    with open_device("sim") as device:
        mended = check(device, target.implementation, feeds, target.reference)
        faulty = check(device, target.variants["scalar_store"].function, feeds, target.reference)
    return mended.verdict is Verdict.EQUIVALENT and faulty.label == target.variants["scalar_store"].label
