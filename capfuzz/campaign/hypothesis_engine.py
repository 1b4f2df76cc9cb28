"""The Hypothesis engine: draws cases from the target's strategy, in this process, with a fixed seed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import configuration as hypothesis_configuration
from hypothesis.strategies import SearchStrategy

from capfuzz.campaign.campaign import Campaign, CampaignOver
from capfuzz.targets import Case

UNLIMITED = 10**9


@contextlib.contextmanager
def nothing_written() -> Iterator[None]:
    """Hypothesis caches what it reads from source files in `.hypothesis/` of whatever directory it runs in.

    It does without a cache that cannot be written, so its directory is put where none can be. A directory that the user
    has named in the environment is used. The setting is the process's, and is put back.
    """
    if os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY"):
        yield
        return
    before = getattr(hypothesis_configuration, "__hypothesis_home_directory", None)
    hypothesis_configuration.set_hypothesis_home_dir(Path(os.devnull) / "hypothesis")
    try:
        yield
    finally:
        hypothesis_configuration.set_hypothesis_home_dir(before)


def property_of(strategy: SearchStrategy[Case], body: Callable[[Case], None], examples: int, number: int) -> Callable[[], None]:
    """A Hypothesis test that feeds `examples` cases to `body`. The body never fails: findings are kept by the campaign."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def test(case: Case) -> None:
        body(case)

    return test


def drawn(strategy: SearchStrategy[Case], cases: int, number: int) -> list[Case]:
    """The cases of one seed."""
    kept: list[Case] = []
    with nothing_written():
        property_of(strategy, kept.append, cases, number)()
    return kept


def run(campaign: Campaign) -> None:
    """Runs the campaign until its budget is spent or the strategy has no more cases."""
    assert campaign.seed is not None
    examples = campaign.budget.max_examples
    test = property_of(campaign.subject.target.strategy(), campaign.try_case, examples or UNLIMITED, campaign.seed)
    try:
        with nothing_written():
            test()
        campaign.take_the_rest()
    except CampaignOver:
        return
    except AssertionError as error:
        # Hypothesis asserts, on its way out, that it had begun. Ctrl-C that comes earlier than that is what really ended it.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    campaign.exhausted = examples is None or campaign.cases < examples
