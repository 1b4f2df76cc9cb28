"""`capfuzz repro ENTRY`"""

from __future__ import annotations

from pathlib import Path

import click

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.entries import Own, loaded
from capfuzz.cli.errors import BadInputError
from capfuzz.repro import NoScriptError, script


@click.command()
@click.argument("entry", type=click.Path(path_type=Path, dir_okay=False))
@options.impl_option
@click.option("--sim", is_flag=True, help="A script that runs without a GPU: on the simulated device, through capfuzz.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write it to FILE. [default: stdout]",
)
def repro(entry: Path, impl: str | None, sim: bool, output: Path | None) -> None:
    """Print a standalone script that shows the fault of an entry, to paste into a report.

    It needs PyTorch and a GPU (with --sim capfuzz and none), has the implementation's own source and the minimal case, and
    prints eager beside replay. It ends with status 1 where the fault shows, with 0 where it does not. An entry never names
    code to import: where it was found on your own function, --impl says which.
    """
    kept = loaded(entry)
    own = Own.of(impl, "sim")
    if (spec := own.elsewhere(kept)) is not None:
        raise BadInputError(f"{entry}: was found on {spec}, and an entry never names code to import: add --impl {spec}")
    again = f"capfuzz replay {entry}" + (f" --impl {impl}" if impl else "")
    found = kept.found
    name = f"{corpora.recorded_signature(kept)} in {kept.target} ({kept.implementation})"
    header = f"# {name}, capfuzz {found.capfuzz}, torch {found.torch} on {found.device}; again: {again}"
    try:
        text = script(kept, own.subject_of(kept), header, sim)
    except NoScriptError as error:
        raise BadInputError(f"{entry}: {error}") from error
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise BadInputError(f"-o {output}: cannot be written: {error.strerror or error}") from error
