"""`capfuzz show ENTRY`"""

from __future__ import annotations

from pathlib import Path

import click

from capfuzz import corpus as corpora
from capfuzz.cli.console import console
from capfuzz.cli.errors import BadInputError
from capfuzz.cli.text import entry_text
from capfuzz.targets import get_target


@click.command()
@click.argument("entry", type=click.Path(path_type=Path, dir_okay=False))
def show(entry: Path) -> None:
    """Print one corpus entry for a person, without running it."""
    try:
        loaded = corpora.load(entry)
    except corpora.CorpusError as error:
        raise BadInputError(str(error)) from error
    console().print(entry_text(loaded, get_target(loaded.target)))
