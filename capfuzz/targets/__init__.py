"""Targets: the ops under test and the cases that are generated for them."""

from capfuzz.targets.case import Case, InvalidCaseError
from capfuzz.targets.model import Subject, Target, Variant
from capfuzz.targets.registry import UnknownNameError, get_target, registered_target, shipped, targets, variant

__all__ = [
    "Case",
    "InvalidCaseError",
    "Subject",
    "Target",
    "UnknownNameError",
    "Variant",
    "get_target",
    "registered_target",
    "shipped",
    "targets",
    "variant",
]
