"""Every target there is: each module of this package that has a `TARGET` is one. A new target is one new file.

A module anywhere else with a `TARGET` that is named as the module is a target by that name: `mypackage.fuzz.my_op`.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import sys
from functools import cache

from capfuzz.targets.model import Subject, Target


class UnknownNameError(ValueError):
    """A target or variant that does not exist; the text suggests the nearest name."""


@cache
def targets() -> dict[str, Target]:
    """All targets by name."""
    import capfuzz.targets as package

    found: dict[str, Target] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        target = getattr(importlib.import_module(f"{package.__name__}.{module}"), "TARGET", None)
        if isinstance(target, Target):
            found[target.name] = target
    return found


def get_target(name: str) -> Target:
    """A target by its name, or by that of its module. Raises `UnknownNameError`."""
    if "." in name and name not in targets():
        return _of_module(name)
    return registered_target(name)


def _of_module(name: str) -> Target:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target = getattr(importlib.import_module(name), "TARGET", None)
    except Exception as error:
        raise UnknownNameError(
            f"no target named {name!r}: importing a module of that name failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(target, Target):
        raise UnknownNameError(f"no target named {name!r}: the module has no TARGET that is a capfuzz Target")
    if target.name != name:
        raise UnknownNameError(f"no target named {name!r}: its TARGET is named {target.name!r}; write name=__name__")
    return target


def registered_target(name: str) -> Target:
    """A target of this package. Raises `UnknownNameError`."""
    known = targets()
    if name not in known:
        raise UnknownNameError(f"no target named {name!r}{_nearest(name, list(known))}; `capfuzz list` shows them all")
    return known[name]


def shipped(target: Target) -> Subject:
    return Subject(target, "shipped", target.implementation)


def variant(target: Target, name: str) -> Subject:
    if name not in target.variants:
        raise UnknownNameError(
            f"target {target.name} has no variant named {name!r}{_nearest(name, list(target.variants))}; "
            f"`capfuzz list {target.name}` shows them all"
        )
    return Subject(target, f"variant:{name}", target.variants[name].function)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; did you mean {close[0]!r}?" if close else ""
