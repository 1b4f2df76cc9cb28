"""Every way in which a verb can end badly: what is said of it, and the exit status that fits. `main` does both."""

from __future__ import annotations

import traceback
from typing import IO, Any

import click

from capfuzz.cli.exit_code import ExitCode
from capfuzz.workers import JudgeFailed, WorkerError


class BadInputError(click.ClickException):
    """The user's input cannot be used."""

    exit_code = ExitCode.USAGE


class HarnessError(click.ClickException):
    """capfuzz itself, or the machine below it, failed."""

    exit_code = ExitCode.HARNESS


class DefectError(HarnessError):
    """capfuzz failed in a way that nobody foresaw. Shown with the traceback: the person who mends it needs it."""

    def __init__(self, error: BaseException, where: str = "capfuzz failed") -> None:
        text = str(error) or "no message"
        what = text if isinstance(error, JudgeFailed) else f"{type(error).__name__}: {text}"
        super().__init__(f"{where}: {what}\nThis is a defect of capfuzz, not a finding; what was found is above")
        self.error = error

    def show(self, file: IO[Any] | None = None) -> None:
        if isinstance(self.error, JudgeFailed):
            click.echo(self.error.traceback, file=file, nl=False, err=True)
        else:
            traceback.print_exception(self.error, file=file)
        super().show(file)


class OutputClosed(BaseException):
    """Whoever read our output has gone (`| head`). Not an `Exception`: no engine may take it for a failing case."""


class OutputFailed(BaseException):
    """Our output cannot be written (a full disk). Not an `Exception`, for the same reason."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")


class ProgramFailed(BaseException):
    """The program under `capfuzz sim` ended with an exception of its own, `error`: it ends as it does under python."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def output_error(error: OSError) -> OutputClosed | OutputFailed:
    """What an error while writing to standard output is."""
    return OutputClosed() if isinstance(error, BrokenPipeError) else OutputFailed(error)


def worker_failed(error: WorkerError) -> click.ClickException:
    """A worker that could not start: the user's to mend (no GPU, a module that does not import), or capfuzz's own failure."""
    return BadInputError(str(error)) if error.by_user else HarnessError(str(error))


def judging_failed(error: BaseException, where: str) -> HarnessError:
    """What ended a verb while cases were judged: workers that do not start any more, or a defect."""
    return HarnessError(str(error)) if isinstance(error, WorkerError) else DefectError(error, where)
