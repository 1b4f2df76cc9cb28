"""`capfuzz audit [TARGET...]`"""

from __future__ import annotations

import statistics
from pathlib import Path

import click

from capfuzz.campaign.audit import Audited, MutantsAudited, audit, audit_mutants
from capfuzz.campaign.field_reports import Recalled, recall, reports_in
from capfuzz.campaign.vacuous import captures_late, frozen_subject, without_inputs
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.errors import BadInputError
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.text import counted
from capfuzz.devices import open_device
from capfuzz.differential import Runner
from capfuzz.targets import Target, targets

ENOUGH = 0.95  # of the mutants
REPORTS = Path("tests/field_reports")


@click.command("audit")
@click.argument("names", metavar="[TARGET...]", nargs=-1)
@options.device_option
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Searches for each fault.")
@click.option("--max-examples", type=click.IntRange(min=1), default=2000, show_default=True, help="Cases a search.")
@click.option("--reports", is_flag=True, help=f"The recall suite of public bug reports, in {REPORTS}, instead of targets.")
@options.case_timeout_option
def audit_targets(
    names: tuple[str, ...], device: str, seeds: int, max_examples: int, reports: bool, case_timeout: float
) -> int:
    """Can a target fail at all? Search for each of its registered faults, and for mechanical mutants of its implementation.

    Every fault must be found with its registered verdict, and no other, from every seed; the medians of cases and seconds
    are printed. Of the mutants (a scalar store for a fill, a fill or clamp left out, int32 for int64, a cached answer ...) 95%
    must be found; one that is equivalent is named by the target. A target whose replays cannot fail is VACUOUS: its graph need
    not read its static inputs, or each call captures anew. The exit status is 1 if a fault is missed, a share is low or a
    target is vacuous.

    With --reports it searches for the fault of each public bug report in the recall suite, and prints a table in Markdown.
    """
    if reports:
        if names:
            raise BadInputError(f"--reports audits the reports in {REPORTS}; leave out {' '.join(names)}, or --reports")
        return _audit_reports(options.device_name(device), seeds, max_examples, case_timeout)
    chosen = [options.target_of(name) for name in names] or list(targets().values())
    out = console()
    faults, missed, too_few, cannot_fail = 0, 0, 0, 0
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
            reason = _late(target) or without_inputs(target, pools.of(frozen_subject(target)), 0, max_examples)
            if reason is not None:
                cannot_fail += 1
                out.print(f"VACUOUS {target.name}: {reason}", style="red")
    ending = f"; {counted(cannot_fail, 'target')} VACUOUS" if cannot_fail else ""
    out.print(
        f"{counted(faults, 'fault')}, {missed} missed; {counted(too_few, 'target')} below {ENOUGH:.0%} of the mutants{ending}"
    )
    return ExitCode.FINDINGS if missed or too_few or cannot_fail else ExitCode.OK


def _late(target: Target) -> str | None:
    if not isinstance(target.implementation, Runner):
        return None
    with open_device("sim") as device:  # how often it captures does not depend on the device
        return captures_late(target, device, 0)


def _audit_reports(device: str, seeds: int, most: int, case_timeout: float) -> int:
    if not REPORTS.is_dir():
        raise BadInputError(f"--reports: there is no directory {REPORTS} here; run it in a checkout of capfuzz")
    out = console()
    count, all_found, wrong, cannot = 0, 0, 0, 0
    out.print("| report | class | expected | given | cases (median) | seconds (median) |")
    out.print("| --- | --- | --- | --- | ---: | ---: |")
    with Pools(device, 1, case_timeout) as pools:
        for report in reports_in(REPORTS):
            recalled = recall(report, seeds, most, pools.of)
            count += 1
            all_found += recalled.is_found
            cannot += report.cannot_show is not None
            is_wrong = bool(recalled.mended_faults) or not (recalled.is_found or report.cannot_show)
            wrong += is_wrong
            out.print(_report_row(recalled), style="red" if is_wrong else None)
            for fault in recalled.mended_faults:
                out.print(f"the mended {report.name} has {fault}", style="red")
        described = pools.describe()
    out.print(f"{all_found} of {counted(count, 'report')} found, {cannot} cannot show; on {described}")
    return ExitCode.FINDINGS if wrong else ExitCode.OK


def _report_row(recalled: Recalled) -> str:
    report = recalled.report
    cases = [found.cases for found in recalled.searches if found.cases is not None]
    given = recalled.given if recalled.is_found or report.cannot_show is None else f"{recalled.given}: {report.cannot_show}"
    many = f"{statistics.median(cases):.0f}" if cases else "-"
    seconds = f"{statistics.median(found.seconds for found in recalled.searches):.2f}"
    name = f"[{report.name}]({report.address})"
    return f"| {name} | {report.fault_class} | {recalled.expected} | {given} | {many} | {seconds} |"


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
