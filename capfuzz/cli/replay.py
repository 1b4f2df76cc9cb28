"""`capfuzz replay [ENTRY...]`"""

from __future__ import annotations

from pathlib import Path

import click

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.entries import Asking, Own, given, readable
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import counted, entry_text
from capfuzz.corpus.replay import Status


@click.command()
@click.argument("entries", metavar="[ENTRY...]", nargs=-1, type=click.Path(path_type=Path))
@options.impl_option
@options.device_option
@options.case_timeout_option
@click.option("-q", "--quiet", is_flag=True, help="One line an entry, no details.")
def replay(entries: tuple[Path, ...], impl: str | None, device: str, case_timeout: float, quiet: bool) -> int:
    """Run corpus entries (files or directories; default: corpus) and say of each what it shows now.

    FAILED: the recorded fault is still there. FIXED: the implementation is equivalent. CHANGED: another fault. ERROR: the file
    cannot be used. The exit status is 1 if any entry is FAILED or CHANGED, else 2 if any is ERROR, else 0. With --impl every
    entry runs on your own function.
    """
    paths, where = given(entries), options.device_name(device)
    own, out = Own.of(impl, where), console()
    counts = dict.fromkeys([*(status.value for status in Status), "ERROR"], 0)
    with Pools(where, workers=1, case_seconds=case_timeout) as pools:
        for path, entry in readable(paths, out, counts):
            subject = own.subject_of(entry)
            result = corpora.replay(entry, subject, Asking(pools, subject, path))
            counts[result.status.value] += 1
            recorded = f" (recorded: {entry.label})" if result.status is Status.CHANGED else ""
            out.print(f"{result.status.value:<8} {path}  {result.outcome.label}{recorded}")
            if (spec := own.elsewhere(entry)) is not None:
                out.print(f"         found on {spec}, run here on the shipped implementation; --impl {spec} runs it on yours")
            if result.outcome.is_fault and not quiet:
                out.print(entry_text(entry, subject.target, result.outcome))
                out.print()
    out.print(f"{counted(len(paths), 'entry')}: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))
    if counts["FAILED"] or counts["CHANGED"]:
        return ExitCode.FINDINGS
    return ExitCode.USAGE if counts["ERROR"] else ExitCode.OK
