"""`capfuzz smoke`"""

from __future__ import annotations

import click

from capfuzz.campaign import Budget
from capfuzz.cli import options
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.run import Where, fuzz
from capfuzz.targets import shipped, targets

SMOKE_SEED = 20_260_101  # a fixed seed: a red smoke run is red again on every machine


@click.command()
@options.device_option
@click.option("--max-examples", type=click.IntRange(min=1), default=500, show_default=True, help="Cases a target.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=SMOKE_SEED, show_default=True)
def smoke(device: str, max_examples: int, seed: int) -> int:
    """Fuzz every target's shipped implementation for a moment: what CI runs. Saves nothing."""
    found = 0
    for target in targets().values():
        budget = Budget(max_examples)
        found += fuzz(shipped(target), Where(options.device_name(device)), "hypothesis", seed, budget, None)
    return ExitCode.FINDINGS if found else ExitCode.OK
