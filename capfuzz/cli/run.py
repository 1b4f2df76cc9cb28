"""`capfuzz run TARGET...`"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click

from capfuzz.campaign import (
    AtherisFailedError,
    AtherisMissingError,
    Budget,
    Campaign,
    CampaignFailed,
    CampaignOver,
    engines,
)
from capfuzz.campaign.events import Event
from capfuzz.campaign.interrupts import Interrupts
from capfuzz.campaign.stats import Drawn
from capfuzz.cli import options
from capfuzz.cli.console import ConsoleHandler, console
from capfuzz.cli.errors import BadInputError, HarnessError, judging_failed, worker_failed
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.reporting import Reports, report_options, reporting
from capfuzz.targets import Subject
from capfuzz.targets import targets as registered
from capfuzz.workers import WorkerError, WorkerPool

ATHERIS_SECONDS = 60.0


@click.command()
@click.argument("targets", metavar="TARGET...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every registered target, one after another.")
@click.option("--variant", metavar="NAME", help="Run a registered faulty variant instead of the shipped implementation.")
@options.impl_option
@options.device_option
@options.workers_option
@options.case_timeout_option
@click.option("--engine", type=click.Choice(["hypothesis", "atheris"]), default="hypothesis", show_default=True)
@click.option(
    "--max-examples",
    type=click.IntRange(min=1),
    help="Stop after this many cases of each target. [default: 2000, or none with --max-time or atheris]",
)
@click.option(
    "--max-time",
    type=options.Seconds(),
    metavar="SECONDS",
    help="Stop after this many seconds, minimising included; the targets share them.",
)
@click.option("--max-findings", type=click.IntRange(min=1), help="Stop after this many findings.")
@click.option("-x", "stop_first", is_flag=True, help="Stop after the first finding.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Draw the same cases again. [default: a new one, printed]")
@options.corpus_option
@click.option("--no-save", is_flag=True, help="Report findings, write no entries.")
@click.option("--stats", is_flag=True, help="Say how often each value of each axis was drawn, and which pairs of values never.")
@report_options
def run(
    targets: tuple[str, ...],
    everything: bool,
    variant: str | None,
    impl: str | None,
    device: str,
    workers: int,
    case_timeout: float,
    engine: str,
    max_examples: int | None,
    max_time: float | None,
    max_findings: int | None,
    stop_first: bool,
    seed: int | None,
    corpus: Path,
    no_save: bool,
    stats: bool,
    as_json: bool,
    junit: Path | None,
    sarif: Path | None,
    html: Path | None,
) -> int:
    """Fuzz targets: eager against capture and replay.

    Each finding is minimised, printed, and saved as CORPUS/<target>/<signature>.json. A report holds all targets of the
    command, and is written also when the run is interrupted.
    """
    with reporting(as_json, junit=junit, sarif=sarif, html=html) as reports:
        where = Where(options.device_name(device), workers, case_timeout)
        if stats and engine != "hypothesis":
            raise BadInputError(f"--stats: the cases of {engine} are drawn in a process of its own; use --engine hypothesis")
        subjects = [
            options.subject_of(options.target_of(name), variant, impl, where.device) for name in _names(targets, everything)
        ]
        budget = _budget(engine, max_examples, max_time, 1 if stop_first else max_findings)
        if corpus.exists() and not corpus.is_dir():
            raise BadInputError(f"--corpus {corpus}: is not a directory")
        found = 0
        ends = None if max_time is None else time.monotonic() + max_time
        for done, subject in enumerate(subjects):
            number = random.randrange(2**32) if seed is None else seed
            if ends is not None:
                budget = replace(budget, max_time=max(ends - time.monotonic(), 0.0) / (len(subjects) - done))
            drawn = Drawn(subject.target) if stats else None
            found += fuzz(subject, where, engine, number, budget, None if no_save else corpus, drawn, reports)
    return ExitCode.FINDINGS if found else ExitCode.OK


def _names(targets: tuple[str, ...], everything: bool) -> tuple[str, ...]:
    if everything and targets:
        raise BadInputError(f"--all runs every target; leave out {' '.join(targets)}, or --all")
    if not everything and not targets:
        raise BadInputError("run which TARGET? `capfuzz list` shows them; --all runs every one")
    return tuple(registered()) if everything else targets


def _budget(engine: str, max_examples: int | None, max_time: float | None, max_findings: int | None) -> Budget:
    if max_examples is None and max_time is None:
        if engine == "atheris":
            max_time = ATHERIS_SECONDS
        else:
            max_examples = Budget.max_examples
    return Budget(max_examples, max_time, max_findings)


@dataclass(frozen=True)
class Where:
    """Where a campaign runs: the device, in how many processes, how long a case may take."""

    device: str
    workers: int = 1
    case_seconds: float = 10.0


def fuzz(
    subject: Subject,
    where: Where,
    engine: str,
    seed: int,
    budget: Budget,
    corpus: Path | None,
    drawn: Drawn | None = None,
    reports: Reports | None = None,
) -> int:
    """Runs one campaign on the terminal and returns its number of findings. Ctrl-C reports what was found and goes on up."""
    reports = reports or Reports()
    try:
        # Before the handler: its progress line has a thread, and the workers' zygote is forked from a process without.
        with WorkerPool(subject, where.device, where.workers, where.case_seconds) as pool, Interrupts() as interrupts:
            text = None if reports.replace_text else ConsoleHandler(console())

            def emit(event: Event) -> None:
                reports(event)
                if text is not None:
                    text(event)

            try:
                campaign = Campaign(
                    subject,
                    pool,
                    emit,
                    engine=engine,
                    seed=seed,
                    budget=budget,
                    corpus=corpus,
                    interrupts=interrupts,
                    drawn=drawn,
                    extras=reports.extras,
                )
                campaign.start()
                try:
                    engines()[engine](campaign)
                except CampaignOver:
                    pass
                except AtherisMissingError:
                    raise
                except (KeyboardInterrupt, CampaignFailed, Exception) as error:
                    campaign.finish(ended_by=error)
                    raise
                campaign.finish()
                return len(campaign.findings)
            finally:
                if text is not None:
                    text.close()
    except AtherisMissingError as error:
        raise BadInputError(str(error)) from error
    except WorkerError as error:
        raise worker_failed(error) from error
    except CampaignFailed as error:
        raise judging_failed(error.__cause__ or error, str(error)) from error
    except AtherisFailedError as error:
        raise HarnessError(str(error)) from error
