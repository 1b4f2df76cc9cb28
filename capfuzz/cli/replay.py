"""`capfuzz replay [ENTRY...]`"""

from __future__ import annotations

from pathlib import Path

import click

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.errors import BadInputError, judging_failed
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import counted, entry_text
from capfuzz.corpus.replay import Status, subject_of
from capfuzz.workers import JudgeFailed, WorkerError


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
    paths = corpora.find_entries(_given(entries))
    own = None if impl is None else options.own_function(impl, options.device_name(device))
    out = console()
    counts = dict.fromkeys([*(status.value for status in Status), "ERROR"], 0)
    with Pools(options.device_name(device), workers=1, case_seconds=case_timeout) as pools:
        for path in paths:
            try:
                entry = corpora.load(path)
            except corpora.CorpusError as error:
                counts["ERROR"] += 1
                out.print(f"ERROR    {error}", style="red")
                continue
            subject = subject_of(entry, own, f"user:{impl}")
            if impl is not None and own is not None:
                options.fits(subject.target, impl, own)
            pool = pools.of(subject)
            try:
                result = corpora.replay(entry, subject, pool.judge)
            except (WorkerError, JudgeFailed) as error:
                raise judging_failed(error, f"{path}: capfuzz failed") from error
            counts[result.status.value] += 1
            recorded = f" (recorded: {entry.label})" if result.status is Status.CHANGED else ""
            out.print(f"{result.status.value:<8} {path}  {result.outcome.label}{recorded}")
            if own is None and entry.implementation.startswith("user:"):
                spec = entry.implementation.removeprefix("user:")
                out.print(f"         found on {spec}, run here on the shipped implementation; --impl {spec} runs it on yours")
            if result.outcome.is_fault and not quiet:
                out.print(entry_text(entry, subject.target, result.outcome))
                out.print()
    out.print(f"{counted(len(paths), 'entry')}: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))
    if counts["FAILED"] or counts["CHANGED"]:
        return ExitCode.FINDINGS
    return ExitCode.USAGE if counts["ERROR"] else ExitCode.OK


def _given(entries: tuple[Path, ...]) -> list[Path]:
    if entries:
        for path in entries:
            if not path.exists():
                raise BadInputError(f"{path}: no such file or directory")
        return list(entries)
    if not options.DEFAULT_CORPUS.is_dir():
        raise BadInputError("there is no corpus directory here; name entries or a directory, or run `capfuzz run` first")
    return [options.DEFAULT_CORPUS]
