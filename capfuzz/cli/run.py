"""`capfuzz run TARGET...`"""

from __future__ import annotations

import random
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
from capfuzz.campaign.interrupts import Interrupts
from capfuzz.cli import options
from capfuzz.cli.console import ConsoleHandler, console
from capfuzz.cli.errors import BadInputError, DefectError, HarnessError
from capfuzz.cli.exit_code import ExitCode
from capfuzz.devices import open_device
from capfuzz.targets import Subject

ATHERIS_SECONDS = 60.0


@click.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option("--variant", metavar="NAME", help="Run a registered faulty variant instead of the shipped implementation.")
@options.impl_option
@options.device_option
@click.option("--engine", type=click.Choice(["hypothesis", "atheris"]), default="hypothesis", show_default=True)
@click.option(
    "--max-examples",
    type=click.IntRange(min=1),
    help="Stop after this many cases. [default: 2000, or none with --max-time or atheris]",
)
@click.option(
    "--max-time", type=options.Seconds(), metavar="SECONDS", help="Stop after this many seconds, minimising included."
)
@click.option("--max-findings", type=click.IntRange(min=1), help="Stop after this many findings.")
@click.option("-x", "stop_first", is_flag=True, help="Stop after the first finding.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Draw the same cases again. [default: a new one, printed]")
@options.corpus_option
@click.option("--no-save", is_flag=True, help="Report findings, write no entries.")
def run(
    targets: tuple[str, ...],
    variant: str | None,
    impl: str | None,
    device: str,
    engine: str,
    max_examples: int | None,
    max_time: float | None,
    max_findings: int | None,
    stop_first: bool,
    seed: int | None,
    corpus: Path,
    no_save: bool,
) -> int:
    """Fuzz targets: eager against capture and replay.

    Each finding is minimised, printed, and saved as CORPUS/<target>/<signature>.json.
    """
    subjects = [options.subject_of(options.target_of(name), variant, impl) for name in targets]
    budget = _budget(engine, max_examples, max_time, 1 if stop_first else max_findings)
    if corpus.exists() and not corpus.is_dir():
        raise BadInputError(f"--corpus {corpus}: is not a directory")
    found = 0
    for subject in subjects:
        number = random.randrange(2**32) if seed is None else seed
        found += fuzz(subject, options.device_name(device), engine, number, budget, None if no_save else corpus)
    return ExitCode.FINDINGS if found else ExitCode.OK


def _budget(engine: str, max_examples: int | None, max_time: float | None, max_findings: int | None) -> Budget:
    if max_examples is None and max_time is None:
        if engine == "atheris":
            max_time = ATHERIS_SECONDS
        else:
            max_examples = Budget.max_examples
    return Budget(max_examples, max_time, max_findings)


def fuzz(subject: Subject, device: str, engine: str, seed: int, budget: Budget, corpus: Path | None) -> int:
    """Runs one campaign on the terminal and returns its number of findings. Ctrl-C reports what was found and goes on up."""
    handler = ConsoleHandler(console())
    try:
        with open_device(device) as opened, Interrupts() as interrupts:
            campaign = Campaign(
                subject, opened, handler, engine=engine, seed=seed, budget=budget, corpus=corpus, interrupts=interrupts
            )
            campaign.start()
            try:
                engines()[engine](campaign)
            except CampaignOver:
                pass
            except AtherisMissingError:
                raise
            except (KeyboardInterrupt, CampaignFailed, Exception):
                campaign.finish(interrupted=True)
                raise
            campaign.finish()
            return len(campaign.findings)
    except AtherisMissingError as error:
        raise BadInputError(str(error)) from error
    except CampaignFailed as error:
        raise DefectError(error.__cause__ or error, str(error)) from error
    except AtherisFailedError as error:
        raise HarnessError(str(error)) from error
    finally:
        handler.close()
