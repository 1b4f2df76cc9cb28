"""Errors of the verbs: one line that says what, where and what to do, and the exit status that fits."""

from __future__ import annotations

import click

from capfuzz.cli.exit_code import ExitCode


class BadInputError(click.ClickException):
    """The user's input cannot be used."""

    exit_code = ExitCode.USAGE


class HarnessError(click.ClickException):
    """capfuzz itself, or the machine below it, failed."""

    exit_code = ExitCode.HARNESS
