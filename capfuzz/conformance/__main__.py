"""`python -m capfuzz.conformance record --out FILE | compare [FILE...] | show NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch

from capfuzz.conformance import comparison, known, recording, records
from capfuzz.conformance.suite import suite


@click.group()
def main() -> None:
    """The conformance suite of the simulated device."""


@main.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="the record to write")
@click.argument("families", nargs=-1)
def record(out: Path, families: tuple[str, ...]) -> None:
    """Measure every idiom on this machine's GPU, or those of FAMILIES, which take their place in the record that is there."""
    known = {idiom.family for idiom in suite().values()}
    if not set(families) <= known:
        raise click.UsageError(f"no family {', '.join(sorted(set(families) - known))}; there are: {', '.join(sorted(known))}")
    try:
        made = recording.record([name for name, idiom in suite().items() if not families or idiom.family in families])
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    if families and out.exists():
        made = records.merged(records.read(out), made)
    records.write(made, out)
    click.echo(f"{len(made.idioms)} idioms on {made.device}, torch {made.torch}: {out}")


@main.command(hidden=True)
@click.argument("names", nargs=-1)
def measure(names: tuple[str, ...]) -> None:
    """The child of `record`."""
    recording.measure_here(list(names))


@main.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(files: tuple[Path, ...]) -> None:
    """Run every idiom on the simulated device and compare with the record nearest to this torch, or with FILES."""
    failed = False
    for made in [records.read(file) for file in files] or [records.nearest(records.shipped(), torch.__version__)]:
        compared = comparison.compare(made)
        for item in compared:
            if item.agreement in ("disagree", "not modelled"):
                click.echo(f"{item.agreement}: {item.idiom.name}")
                click.echo(f"  {made.device}: {item.recorded}\n  sim: {item.simulated}")
            elif item.agreement == "known":
                click.echo(f"known: {item.idiom.name}: {known.KNOWN[item.idiom.name]}")
        click.echo(f"\nsimulated device against {made.device}, torch {made.torch}, recorded {made.date}")
        click.echo(comparison.table(compared))
        unmeasured = [name for name in suite() if name not in made.idioms]
        if unmeasured:
            click.echo(f"not in this record: {', '.join(unmeasured)}")
        failed = failed or any(item.agreement == "disagree" for item in compared)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
