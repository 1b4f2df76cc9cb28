"""`capfuzz corpus check|dedupe|migrate`"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.entries import Asking, Own, changed, given, readable
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import counted, summary
from capfuzz.cli.verbs import VerbGroup
from capfuzz.findings import signature

_ENTRIES = click.argument("entries", metavar="[ENTRY...]", nargs=-1, type=click.Path(path_type=Path))


@click.group(cls=VerbGroup)
def corpus() -> None:
    """Look after a corpus: check its files, drop what is there twice, rewrite old versions.

    Each takes files or directories; the default is corpus.
    """


@corpus.command()
@_ENTRIES
def check(entries: tuple[Path, ...]) -> int:
    """Read every entry, and compare its name with what it holds. Nothing is run.

    A line for each file that is wrong: it cannot be used, or it is not <target>/<signature>.json. The exit status is 2 if any
    is, else 0.
    """
    paths, out, counts = given(entries), console(), {"OK": 0, "ERROR": 0}
    old = 0
    for path, entry in readable(paths, out, counts):
        why = corpora.misnamed(path, entry)
        counts["OK" if why is None else "ERROR"] += 1
        old += entry.schema < corpora.SCHEMA_VERSION
        if why is not None:
            out.print(f"ERROR    {path}: {why}", style="red")
    if old:
        out.print(
            f"{counted(old, 'entry')} of an older schema version, which is read all the same; `capfuzz corpus migrate` rewrites"
        )
    return _ended(paths, counts, out_of=counts["ERROR"])


@corpus.command()
@_ENTRIES
@options.device_option
@options.case_timeout_option
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def dedupe(entries: tuple[Path, ...], device: str, case_timeout: float, dry_run: bool) -> int:
    """Keep the smallest of the entries with the same fault of the same implementation; remove the others.

    Each entry is run, for its signature as it is today; where its fault does not show any more the recorded one counts. The
    exit status is 2 if a file cannot be used or removed, else 0.
    """
    paths, where = given(entries), options.device_name(device)
    own, out = Own.of(None, where), console()
    counts = {"KEPT": 0, "REMOVED": 0, "ERROR": 0}
    same: dict[tuple[str, str], list[tuple[Path, corpora.Entry]]] = {}
    with Pools(where, workers=1, case_seconds=case_timeout) as pools:
        for path, entry in readable(paths, out, counts):
            subject = own.subject_of(entry)
            outcome = Asking(pools, subject, path)(entry.case)
            shows = outcome.label == entry.label
            name = signature(entry.target, outcome) if shows else corpora.recorded_signature(entry)
            same.setdefault((f"{entry.target}/{name}", entry.implementation), []).append((path, entry))
    for (name, _), found in same.items():
        kept, *others = sorted(found, key=lambda pair: (corpora.size_of(pair[1].case), str(pair[0])))
        counts["KEPT"] += 1
        for path, _ in others:
            if not dry_run and not changed(partial(corpora.remove, path), out, counts):
                continue
            counts["REMOVED"] += 1
            out.print(f"{'WOULD REMOVE' if dry_run else 'REMOVED'}  {path}  {name}, kept in {kept[0]}")
    return _ended(paths, counts, out_of=counts["ERROR"])


@corpus.command()
@_ENTRIES
def migrate(entries: tuple[Path, ...]) -> int:
    """Rewrite entries of older schema versions in the newest one. Nothing is run.

    The exit status is 2 if a file cannot be used or written, else 0.
    """
    paths, out, counts = given(entries), console(), {"MIGRATED": 0, "NEWEST": 0, "ERROR": 0}
    for path, entry in readable(paths, out, counts):
        if entry.schema == corpora.SCHEMA_VERSION:
            counts["NEWEST"] += 1
            continue
        if not changed(partial(corpora.overwrite, path, corpora.upgraded(entry)), out, counts):
            continue
        counts["MIGRATED"] += 1
        out.print(f"MIGRATED {path}  {entry.schema} -> {corpora.SCHEMA_VERSION}")
    return _ended(paths, counts, out_of=counts["ERROR"])


def _ended(paths: Iterable[Path], counts: dict[str, int], out_of: int) -> int:
    console().print(summary(len(list(paths)), counts))
    return ExitCode.USAGE if out_of else ExitCode.OK
