"""`capfuzz triage [ENTRY...]`"""

from __future__ import annotations

from pathlib import Path

import click

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.entries import Asking, Own, given, readable
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import summary
from capfuzz.corpus.replay import Status

_WORDS = {Status.FAILED: "REPRODUCES", Status.FIXED: "MENDED", Status.CHANGED: "CHANGED"}


@click.command()
@click.argument("entries", metavar="[ENTRY...]", nargs=-1, type=click.Path(path_type=Path))
@options.impl_option
@options.device_option
@options.case_timeout_option
def triage(entries: tuple[Path, ...], impl: str | None, device: str, case_timeout: float) -> int:
    """Say of each entry (files or directories; default: corpus) whether its fault is still there, beside what it expects.

    REPRODUCES: the recorded verdict. MENDED: equivalent. CHANGED: another fault. ERROR: the file cannot be used. An entry that
    expects `fault` or `open` must reproduce, one that expects `equivalent` must be mended; what is neither is UNEXPECTED, and
    so is every CHANGED one. The exit status is 1 if any entry is UNEXPECTED, else 2 if any is ERROR, else 0.
    """
    paths, where = given(entries), options.device_name(device)
    own, out = Own.of(impl, where), console()
    counts = dict.fromkeys([*_WORDS.values(), "ERROR"], 0)
    unexpected = 0
    with Pools(where, workers=1, case_seconds=case_timeout) as pools:
        for path, entry in readable(paths, out, counts):
            subject = own.subject_of(entry)
            result = corpora.replay(entry, subject, Asking(pools, subject, path))
            word = _WORDS[result.status]
            counts[word] += 1
            unexpected += not result.as_expected
            beside = "" if result.as_expected else f"  UNEXPECTED, expects {entry.expect.value}"
            recorded = "" if result.status is Status.FAILED else f" (recorded: {entry.label})"
            spec = own.elsewhere(entry)
            on = "" if spec is None else f", on the shipped implementation, not on {spec}"
            style = None if result.as_expected else "red"
            out.print(f"{word:<10}  {path}  {result.outcome.label}{recorded}{on}{beside}", style=style)
    out.print(f"{summary(len(paths), counts)}; {unexpected} UNEXPECTED")
    if unexpected:
        return ExitCode.FINDINGS
    return ExitCode.USAGE if counts["ERROR"] else ExitCode.OK
