"""Options that several verbs take; the same flag means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from capfuzz.campaign.subjects import ImplementationError, user
from capfuzz.cli.errors import BadInputError
from capfuzz.targets import Subject, Target, UnknownNameError, get_target, shipped, variant

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT_CORPUS = Path("corpus")

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
