"""Options that several verbs take; the same flag means the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
import torch

from capfuzz.cli.errors import BadInputError
from capfuzz.targets import Subject, Target, UnknownNameError, get_target, shipped, variant
from capfuzz.targets.subjects import ImplementationError, check_arguments, import_function, user

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT_CORPUS = Path("corpus")


class Seconds(click.FloatRange):
    """A time above 0. `nan` compares with nothing and `inf` is no limit: neither is one."""

    name = "number of seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


device_option: Decorator = click.option(
    "--device",
    type=click.Choice(["auto", "sim", "cuda"]),
    default="auto",
    show_default=True,
    help="Where cases run: on the simulated device, or on a GPU (CUDA or HIP). auto takes a GPU where there is one.",
)
workers_option: Decorator = click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that judge cases. Several GPUs are taken in turn.",
)
case_timeout_option: Decorator = click.option(
    "--case-timeout",
    type=Seconds(),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="A case that takes longer is a finding: hang.",
)
corpus_option: Decorator = click.option(
    "--corpus",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_CORPUS,
    show_default=True,
    help="Directory of corpus entries.",
)
impl_option: Decorator = click.option(
    "--impl", metavar="MODULE:FUNCTION", help="Your own function, looked up from the working directory too."
)


def device_name(option: str) -> str:
    """The device that --device names. `auto` looks at the machine without touching the GPU, which workers are forked to use."""
    if option != "auto":
        return option
    nvidia = torch.version.cuda is not None and any(Path("/dev").glob("nvidia[0-9]*"))
    amd = torch.version.hip is not None and Path("/dev/kfd").exists()
    return "cuda" if nvidia or amd else "sim"


def target_of(name: str) -> Target:
    try:
        return get_target(name)
    except UnknownNameError as error:
        raise BadInputError(str(error)) from error


def importing_on(device: str) -> AbstractContextManager[object]:
    """Where the user's module is imported: it may make tensors on the device as it is."""
    if device != "sim":
        return nullcontext()
    from capfuzz.devices.sim import sim

    return sim()


def own_function(impl: str, device: str) -> Callable[..., Any]:
    """The function that --impl names. Raises `BadInputError`."""
    try:
        with importing_on(device):
            return import_function(impl)
    except ImplementationError as error:
        raise BadInputError(str(error)) from error


def fits(target: Target, impl: str, function: Callable[..., Any]) -> None:
    """Raises `BadInputError` unless the function that --impl names takes the arguments of `target`."""
    try:
        check_arguments(target, impl, function)
    except ImplementationError as error:
        raise BadInputError(str(error)) from error


def subject_of(target: Target, variant_name: str | None, impl: str | None, device: str) -> Subject:
    """The implementation that the flags name. Raises `BadInputError`."""
    if variant_name is not None and impl is not None:
        raise BadInputError("--variant and --impl name two implementations; give one of them")
    try:
        if variant_name is not None:
            return variant(target, variant_name)
        if impl is None:
            return shipped(target)
        with importing_on(device):
            return user(target, impl)
    except (UnknownNameError, ImplementationError) as error:
        raise BadInputError(str(error)) from error
