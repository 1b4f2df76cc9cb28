"""The Hypothesis engine: draws cases from the target's strategy, in this process, with a fixed seed."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from capfuzz.campaign.campaign import Campaign, CampaignOver
from capfuzz.targets import Case

UNLIMITED = 10**9


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


def run(campaign: Campaign) -> None:
    """Runs the campaign until its budget is spent or the strategy has no more cases."""
    assert campaign.seed is not None
    examples = campaign.budget.max_examples
    test = property_of(campaign.subject.target.strategy(), campaign.try_case, examples or UNLIMITED, campaign.seed)
    try:
        test()
    except CampaignOver:
        return
    campaign.exhausted = examples is None or campaign.cases < examples
