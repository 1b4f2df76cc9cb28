"""`capfuzz audit [TARGET...]`"""

from __future__ import annotations

import click

from capfuzz.campaign.audit import Audited, MutantsAudited, audit, audit_mutants
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import counted
from capfuzz.targets import targets

ENOUGH = 0.95  # of the mutants


@click.command("audit")
@click.argument("names", metavar="[TARGET...]", nargs=-1)
@options.device_option
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Searches for each fault.")
@click.option("--max-examples", type=click.IntRange(min=1), default=2000, show_default=True, help="Cases a search.")
@options.case_timeout_option
def audit_targets(names: tuple[str, ...], device: str, seeds: int, max_examples: int, case_timeout: float) -> int:
    """Can a target fail at all? Search for each of its registered faults, and for mechanical mutants of its implementation.

    Every fault must be found with its registered verdict, and no other, from every seed; the medians of cases and seconds
    are printed. Of the mutants (a scalar store for a fill, a fill or clamp left out, int32 for int64, a cached answer ...) 95%
    must be found; one that is equivalent is named by the target. The exit status is 1 if a fault is missed or a share is low.
    """
    chosen = [options.target_of(name) for name in names] or list(targets().values())
    out = console()
    faults, missed, too_few = 0, 0, 0
    with Pools(options.device_name(device), 1, case_timeout) as pools:
        for target in chosen:
            for found in audit(target, seeds, max_examples, pools.of):
                faults += 1
                missed += bool(found.missed)
                out.print(_line(found, seeds), style="red" if found.missed else None)
            grown = audit_mutants(target, 0, max_examples, pools.of)
            too_few += grown.share < ENOUGH
            for line in _mutant_lines(grown):
                out.print(line, style="red" if grown.share < ENOUGH else None)
    out.print(f"{counted(faults, 'fault')}, {missed} missed; {counted(too_few, 'target')} below {ENOUGH:.0%} of the mutants")
    return ExitCode.FINDINGS if missed or too_few else ExitCode.OK


def _mutant_lines(grown: MutantsAudited) -> list[str]:
    target = grown.target
    lines = [
        f"mutants {target.name:<52}{grown.share:.0%} of {grown.count - len(grown.survivors) + len(grown.unexplained)} found"
    ]
    for survivor in grown.survivors:
        reason = target.equivalent_mutants.get(survivor.name)
        fate, why = ("equivalent", f" ({reason})") if reason else ("SURVIVED", "")
        lines.append(f"        {fate}  {survivor.name}: {survivor.text}{why}")
    return lines


def _line(found: Audited, seeds: int) -> str:
    name = f"{found.target.name}  {found.variant.name}"
    if not found.missed:
        return f"found   {name:<52}{found.variant.label:<34}{found.median_cases:6.0f} cases  {found.median_seconds:6.2f} s"
    instead = {search.instead for search in found.missed if search.instead is not None}
    also = f", found {', '.join(sorted(instead))} instead" if instead else ""
    return f"MISSED  {name:<52}{found.variant.label:<34}from {len(found.missed)} of {seeds} seeds{also}"
