"""Finds the implementation that a run is about: the shipped one, a registered variant, the user's own function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from capfuzz.targets import Subject, Target, get_target, shipped, variant


class ImplementationError(ValueError):
    """`--impl` does not name a function that can be imported."""


def subject_from_label(target_name: str, label: str) -> Subject:
    """`shipped`, `variant:NAME` or `user:MODULE:FUNCTION`, as `Subject.label` has it."""
    target = get_target(target_name)
    kind, _, name = label.partition(":")
    if kind == "shipped":
        return shipped(target)
    return variant(target, name) if kind == "variant" else user(target, name)


def user(target: Target, spec: str) -> Subject:
    """The function `MODULE:FUNCTION`, looked up from the working directory too. Raises `ImplementationError`."""
    return Subject(target, f"user:{spec}", import_function(spec))


def import_function(spec: str) -> Callable[..., Any]:
    module_name, separator, function_name = spec.partition(":")
    if not separator or not module_name or not function_name:
        raise ImplementationError(f"--impl {spec!r}: write MODULE:FUNCTION, for example mypackage.ops:fold_indptr")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise ImplementationError(
                f"--impl {spec!r}: no module named {error.name!r} in {os.getcwd()} or among the installed packages"
            ) from error
        raise ImplementationError(f"--impl {spec!r}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise ImplementationError(
            f"--impl {spec!r}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    function: Any = module
    for part in function_name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
        raise ImplementationError(
            f"--impl {spec!r}: {module_name} has no function {function_name!r}; it has: {', '.join(names) or 'none'}"
        )
    found: Callable[..., Any] = function
    return found
