"""The Python functions that an implementation is made of."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def reachable(functions: Iterable[Callable[..., Any]]) -> list[types.FunctionType]:
    """These functions, what they wrap or hold (`functools.partial`, closures), and those of the same modules that they name.

    What is looked up in another way (an attribute, a registry) is not seen.
    """
    waiting: list[Any] = list(functions)
    modules = {module for function in waiting for module in _modules(function)}
    found: list[types.FunctionType] = []
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, types.FunctionType) and value not in found and value.__module__ in modules:
            found.append(value)
            waiting += _held(value)
    return found


def _modules(function: Any) -> Iterator[str]:
    while isinstance(function, functools.partial):
        function = function.func
    yield getattr(function, "__module__", "")


def _held(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is not bound yet
            continue
    yield getattr(function, "__wrapped__", None)
    for name in _names(function.__code__):
        yield function.__globals__.get(name)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a code looks up, those of the functions in it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
