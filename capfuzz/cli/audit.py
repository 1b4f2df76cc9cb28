"""`capfuzz audit [TARGET...]`"""

from __future__ import annotations

import click

from capfuzz.campaign.audit import Audited, audit
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import counted
from capfuzz.targets import targets


@click.command("audit")
@click.argument("names", metavar="[TARGET...]", nargs=-1)
@options.device_option
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Searches for each fault.")
@click.option("--max-examples", type=click.IntRange(min=1), default=2000, show_default=True, help="Cases a search.")
@options.case_timeout_option
def audit_targets(names: tuple[str, ...], device: str, seeds: int, max_examples: int, case_timeout: float) -> int:
    """Can a target fail at all? Search for each of its registered faults.

    Every fault must be found with its registered verdict, and no other, from every seed. Prints the median number of cases and
    of seconds; the exit status is 1 if a fault is missed.
    """
    chosen = [options.target_of(name) for name in names] or list(targets().values())
    out = console()
    faults, missed = 0, 0
    with Pools(options.device_name(device), 1, case_timeout) as pools:
        for target in chosen:
            for found in audit(target, seeds, max_examples, pools.of):
                faults += 1
                missed += bool(found.missed)
                out.print(_line(found, seeds), style="red" if found.missed else None)
    out.print(f"{counted(faults, 'fault')}, {missed} missed")
    return ExitCode.FINDINGS if missed else ExitCode.OK


def _line(found: Audited, seeds: int) -> str:
    name = f"{found.target.name}  {found.variant.name}"
    if not found.missed:
        return f"found   {name:<52}{found.variant.label:<34}{found.median_cases:6.0f} cases  {found.median_seconds:6.2f} s"
    instead = {search.instead for search in found.missed if search.instead is not None}
    also = f", found {', '.join(sorted(instead))} instead" if instead else ""
    return f"MISSED  {name:<52}{found.variant.label:<34}from {len(found.missed)} of {seeds} seeds{also}"
