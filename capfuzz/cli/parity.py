"""`capfuzz parity [TARGET...]`"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click

from capfuzz import corpus as corpora
from capfuzz.campaign.parity import Compared, compare, compare_target
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.pools import Pools
from capfuzz.cli.smoke import SMOKE_SEED
from capfuzz.cli.text import case_text, counted, field
from capfuzz.corpus.replay import subject_of
from capfuzz.targets import Subject, Target, targets
from capfuzz.workers import Judge

Judges = Callable[[Subject], tuple[Judge, Judge]]


@click.command()
@click.argument("names", metavar="[TARGET...]", nargs=-1)
@click.option("--max-examples", type=click.IntRange(min=1), default=100, show_default=True, help="Cases an implementation.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=SMOKE_SEED, show_default=True)
@options.corpus_option
@options.case_timeout_option
def parity(names: tuple[str, ...], max_examples: int, seed: int, corpus: Path, case_timeout: float) -> int:
    """Run the same cases on the simulated device and on the GPU, and list those where the verdicts differ.

    For each target: its shipped implementation and every variant, and the entries of the corpus. The exit status is 1 if any
    case differs. A difference is a defect of the simulated device.
    """
    chosen = [options.target_of(name) for name in names] or list(targets().values())
    out = console()
    compared: Counter[bool] = Counter()
    with Pools("sim", 1, case_timeout) as sim, Pools("cuda", 1, case_timeout) as cuda:

        def judges(subject: Subject) -> tuple[Judge, Judge]:
            return sim.of(subject), cuda.of(subject)

        for target in chosen:
            found = list(compare_target(target, max_examples, seed, judges))
            found += _entries(target, corpus, judges)
            for item in found:
                compared[item.agree] += 1
                if not item.agree:
                    out.print(
                        f"DIFFERS  {target.name} ({item.subject.label})  sim: {item.left.label}  cuda: {item.right.label}"
                    )
                    out.print(field("case", case_text(target, item.case)))
            out.print(f"{target.name}: {counted(len(found), 'case')} on sim and on {cuda.describe()}")
    out.print(f"{counted(compared.total(), 'case')}, {compared[False]} differ")
    return ExitCode.FINDINGS if compared[False] else ExitCode.OK


def _entries(target: Target, corpus: Path, judges: Judges) -> list[Compared]:
    directory = corpus / target.name
    found: list[Compared] = []
    for path in corpora.find_entries([directory]) if directory.is_dir() else []:
        entry = corpora.load(path)
        subject = subject_of(entry)
        found += compare(subject, [entry.case], *judges(subject))
    return found
