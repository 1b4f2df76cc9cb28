"""Campaigns: engines draw cases, the campaign turns failing ones into findings."""

from collections.abc import Callable

from capfuzz.campaign import hypothesis_engine
from capfuzz.campaign.atheris_engine import AtherisFailedError, AtherisMissingError
from capfuzz.campaign.campaign import Budget, Campaign, CampaignFailed, CampaignOver
from capfuzz.targets.subjects import ImplementationError

Engine = Callable[[Campaign], None]


def engines() -> dict[str, Engine]:
    """Every engine by name."""
    from capfuzz.campaign import atheris_engine

    return {"hypothesis": hypothesis_engine.run, "atheris": atheris_engine.run}


__all__ = [
    "AtherisFailedError",
    "AtherisMissingError",
    "Budget",
    "Campaign",
    "CampaignFailed",
    "CampaignOver",
    "Engine",
    "ImplementationError",
    "engines",
]
