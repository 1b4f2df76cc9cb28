"""Finds the implementation that a run is about: the shipped one, a registered variant, the user's own function."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from capfuzz.targets import Case, InvalidCaseError, Subject, Target, get_target, shipped, variant
from capfuzz.targets.axes import StepIntAxis
from capfuzz.targets.mutants import mutant


class ImplementationError(ValueError):
    """`--impl` does not name a function that can be imported and takes the target's arguments."""


def subject_from_label(target_name: str, label: str) -> Subject:
    """`shipped`, `variant:NAME`, `mutant:NAME` or `user:MODULE:FUNCTION`, as `Subject.label` has it."""
    target = get_target(target_name)
    kind, _, name = label.partition(":")
    if kind == "shipped":
        return shipped(target)
    if kind == "mutant":
        return Subject(target, label, mutant(target, name).function)
    return variant(target, name) if kind == "variant" else user(target, name)


def user(target: Target, spec: str) -> Subject:
    """The function `MODULE:FUNCTION`, looked up from the working directory too. Raises `ImplementationError`."""
    function = import_function(spec)
    check_arguments(target, spec, function)
    return Subject(target, f"user:{spec}", function)


def check_arguments(target: Target, spec: str, function: Callable[..., Any]) -> None:
    """Raises `ImplementationError` unless `function` can be called with the target's arguments: what it would raise in every
    case is a mistake of the user, not a finding."""
    try:
        # Of the function as it is called: a decorator may supply arguments that what it wraps needs.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin: nothing is known of it
        return
    names = _arguments(target)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise ImplementationError(
            f"--impl {spec!r}: takes {takes}; {target.name} calls it with {', '.join(names)}, by name: {error}"
        ) from error


def _arguments(target: Target) -> list[str]:
    """The names that every implementation of the target is called with: those of its simplest case."""
    step: dict[str, int | list[int]] = {
        axis.name: axis.least if isinstance(axis, StepIntAxis) else [axis.least] for axis in target.stepped
    }
    try:
        return list(target.feeds(Case({axis.name: axis.simplest for axis in target.fixed}, [step]))[0])
    except InvalidCaseError:  # a target whose axes are not simple together: its reference gets the same arguments
        return [] if target.reference is None else list(inspect.signature(target.reference).parameters)


def import_function(spec: str) -> Callable[..., Any]:
    """Raises `ImplementationError`."""
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
    except SystemExit as error:
        raise ImplementationError(
            f"--impl {spec!r}: importing {module_name} failed: it ends the process (sys.exit({error.code!r})); "
            "what is a program has to be under `if __name__ == '__main__':`"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also what is no `Exception`, such as pytest's Skipped
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
