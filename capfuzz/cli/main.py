"""The command line: one file a verb. Here the verbs are put together and errors become one line and an exit status."""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any, NoReturn

import click

from capfuzz.cli import doctor, list_, replay, run, show, sim, smoke
from capfuzz.cli.console import OutputClosed
from capfuzz.cli.exit_code import ExitCode
from capfuzz.version import VERSION

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Verbs(click.Group):
    """A group that suggests the nearest verb."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.commands, n=1, cutoff=0.4)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"no verb named {name!r}{hint} (verbs: {', '.join(self.commands)})", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings=CONTEXT)
@click.version_option(VERSION, prog_name="capfuzz")
def cli() -> None:
    """capfuzz: the same answer under CUDA graph capture and replay as eagerly.

    Exit status: 0 nothing found, 1 findings, 2 usage error, 3 the harness failed, 130 interrupted.
    """


for command in (run.run, replay.replay, list_.list_targets, show.show, smoke.smoke, sim.sim, doctor.doctor):
    cli.add_command(command)


def main() -> NoReturn:
    """The console script."""
    try:
        code = cli.main(standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(ExitCode.USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except (BrokenPipeError, OutputClosed):
        # Nobody is left to tell; the interpreter must not try again when it flushes on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.OK)
