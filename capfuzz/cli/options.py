"""Options that several verbs take; the same flag means the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from capfuzz.campaign.subjects import ImplementationError, check_arguments, import_function, user
from capfuzz.cli.errors import BadInputError
from capfuzz.targets import Subject, Target, UnknownNameError, get_target, shipped, variant

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
    type=click.Choice(["auto", "sim"]),
    default="auto",
    show_default=True,
    help="Where cases run. auto takes the simulated device.",
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
    return "sim" if option == "auto" else option


def target_of(name: str) -> Target:
    try:
        return get_target(name)
    except UnknownNameError as error:
        raise BadInputError(str(error)) from error


def own_function(impl: str) -> Callable[..., Any]:
    """The function that --impl names. Raises `BadInputError`."""
    try:
        return import_function(impl)
    except ImplementationError as error:
        raise BadInputError(str(error)) from error


def fits(target: Target, impl: str, function: Callable[..., Any]) -> None:
    """Raises `BadInputError` unless the function that --impl names takes the arguments of `target`."""
    try:
        check_arguments(target, impl, function)
    except ImplementationError as error:
        raise BadInputError(str(error)) from error


def subject_of(target: Target, variant_name: str | None, impl: str | None) -> Subject:
    """The implementation that the flags name. Raises `BadInputError`."""
    if variant_name is not None and impl is not None:
        raise BadInputError("--variant and --impl name two implementations; give one of them")
    try:
        if variant_name is not None:
            return variant(target, variant_name)
        return user(target, impl) if impl is not None else shipped(target)
    except (UnknownNameError, ImplementationError) as error:
        raise BadInputError(str(error)) from error
