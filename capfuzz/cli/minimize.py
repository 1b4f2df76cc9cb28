"""`capfuzz minimize ENTRY...`"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import msgspec

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.entries import Asking, Own, changed, given, readable
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import case_text, field, summary
from capfuzz.findings import Finding, signature
from capfuzz.findings.reduce import reduced
from capfuzz.targets import Subject


@click.command()
@click.argument("entries", metavar="ENTRY...", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.impl_option
@options.device_option
@options.case_timeout_option
def minimize(entries: tuple[Path, ...], impl: str | None, device: str, case_timeout: float) -> int:
    """Minimise entries (files or directories) again: ones that were edited by hand, or found by an older version.

    MINIMIZED: a smaller case shows the fault; the file has it now. MINIMAL: none does; the file stays as it is. REFUSED: the
    recorded fault does not show, or not every time; the file stays as it is. ERROR: the file cannot be used. The exit status
    is 2 if any entry is REFUSED or ERROR, else 0. With --impl every entry runs on your own function.
    """
    paths, where = given(entries), options.device_name(device)
    own, out = Own.of(impl, where), console()
    counts = dict.fromkeys(["MINIMIZED", "MINIMAL", "REFUSED", "ERROR"], 0)
    with Pools(where, workers=1, case_seconds=case_timeout) as pools:
        for path, entry in readable(paths, out, counts):
            subject = own.subject_of(entry)
            smaller, why = _smaller(entry, subject, Asking(pools, subject, path))
            if smaller is None:
                counts["REFUSED"] += 1
                spec = own.elsewhere(entry)
                on = "" if spec is None else f"; it was found on {spec}: --impl {spec}"
                out.print(f"REFUSED    {path}  {why}{on}", style="red")
                continue
            if smaller.case == entry.case:
                counts["MINIMAL"] += 1
                out.print(f"MINIMAL    {path}  {entry.label}{why}")
                continue
            if not changed(partial(corpora.overwrite, path, smaller), out, counts):
                continue
            counts["MINIMIZED"] += 1
            out.print(f"MINIMIZED  {path}  {entry.label}{why}")
            out.print(field("before", case_text(subject.target, entry.case)))
            out.print(field("after", case_text(subject.target, smaller.case)))
    out.print(summary(len(paths), counts))
    return ExitCode.USAGE if counts["REFUSED"] or counts["ERROR"] else ExitCode.OK


def _smaller(entry: corpora.Entry, subject: Subject, ask: Asking) -> tuple[corpora.Entry | None, str]:
    """The entry with its smallest case, and a note where time ran out; None where the fault does not show, and why."""
    outcome = ask(entry.case)
    if outcome.label != entry.label:
        return None, f"{outcome.label} (recorded: {entry.label})"
    name, found = signature(entry.target, outcome), entry.found
    finding = Finding(entry.target, entry.implementation, entry.case, outcome, name, found.seed, found.device, found.engine)
    best, note = reduced(subject.target, finding, ask)
    if best.flaky:
        return None, f"{entry.label} does not show every time"
    changed = {"case": best.case, "message": best.outcome.message, "blame": best.blame, "axes": best.axes or entry.axes}
    mend = entry.mend if best.blame == entry.blame else None  # of the code as it was
    smaller: corpora.Entry = msgspec.structs.replace(corpora.upgraded(entry), **changed, mend=mend)
    return smaller, f"  ({note})" if note else ""
