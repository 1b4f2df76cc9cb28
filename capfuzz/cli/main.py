"""The command line: one file a verb. Here the verbs are put together; each way to end becomes a message and an exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

import click

from capfuzz.cli import audit, corpus, doctor, list_, minimize, parity, replay, repro, run, show, sim, smoke, trace, triage
from capfuzz.cli.errors import DefectError, HarnessError, OutputClosed, OutputFailed, ProgramFailed, output_error
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.verbs import VerbGroup
from capfuzz.version import VERSION
from capfuzz.workers import WorkerError

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@contextlib.contextmanager
def _before_click() -> Iterator[None]:
    """Names the errors that click has a meaning of its own for: EOFError is Ctrl-C to it, a broken pipe exit status 1."""
    try:
        yield
    except EOFError as error:
        raise DefectError(error) from error
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.ENOSPC) and error.filename is None:  # click's own printing: help, version
            raise output_error(error) from error
        raise DefectError(error) from error


class Verbs(VerbGroup):
    """The verbs of capfuzz."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _before_click():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _before_click():
            return super().invoke(ctx)


@click.group(cls=Verbs, context_settings=CONTEXT)
@click.version_option(VERSION, prog_name="capfuzz")
def cli() -> None:
    """capfuzz: the same answer under CUDA graph capture and replay as eagerly.

    Exit status: 0 nothing found, 1 findings, 2 usage error, 3 the harness failed, 130 interrupted.
    """


for command in (
    run.run,
    replay.replay,
    trace.trace,
    list_.list_targets,
    show.show,
    repro.repro,
    minimize.minimize,
    triage.triage,
    corpus.corpus,
    smoke.smoke,
    sim.sim,
    audit.audit_targets,
    parity.parity,
    doctor.doctor,
):
    cli.add_command(command)


def main() -> NoReturn:
    """The console script."""
    try:
        code = cli.main(standalone_mode=False)
        _flush()
    except click.ClickException as error:
        _say(error.show)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _say(lambda: click.echo("interrupted", err=True))
        sys.exit(ExitCode.INTERRUPTED)
    except OutputClosed:
        _silence(sys.stdout)  # nobody is left to tell
        sys.exit(ExitCode.INTERRUPTED)
    except OutputFailed as error:
        _silence(sys.stdout)
        _say(click.ClickException(str(error)).show)
        sys.exit(ExitCode.HARNESS)
    except ProgramFailed as failed:
        sys.excepthook(type(failed.error), failed.error, failed.error.__traceback__)
        sys.exit(1)
    except SystemExit:  # of the program under `capfuzz sim`
        raise
    except WorkerError as error:
        _say(HarnessError(str(error)).show)
        sys.exit(ExitCode.HARNESS)
    except BaseException as error:
        _say(DefectError(error).show)
        sys.exit(ExitCode.HARNESS)
    sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _flush() -> None:
    """Now, while it still can change the exit status. Raises `OutputClosed` and `OutputFailed`."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise output_error(error) from error


def _say(show: Callable[[], None]) -> None:
    """Tells on standard error. Where that cannot be written either, the exit status is all that is left."""
    try:
        show()
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO | None) -> None:
    """The interpreter flushes on exit; it must not fail there again, with an exit status of its own."""
    if stream is not None:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
