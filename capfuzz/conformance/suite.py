"""The registry of idioms. An idiom is one mechanism, written as serving code would write it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capfuzz.conformance import idioms
from capfuzz.conformance.buffers import Buffers

Body = Callable[[Buffers], Any]


@dataclass(frozen=True)
class Idiom:
    """One piece of code.

    A *body* returns a list of device tensors; the protocol captures it and replays it. A *program* drives graphs, streams and
    memory itself, and returns what a person would look at as plain JSON values; what it raises is recorded as well.
    """

    name: str
    family: str
    run: Body
    is_program: bool

    @property
    def source(self) -> str:
        """The function's text, by which a record knows that it was made of this very code."""
        return textwrap.dedent(inspect.getsource(self.run))


_IDIOMS: dict[str, Idiom] = {}


def _register(function: Body, is_program: bool) -> Body:
    name = function.__name__
    if name in _IDIOMS:
        raise ValueError(f"two idioms are named {name}: {_IDIOMS[name].run.__module__} and {function.__module__}")
    _IDIOMS[name] = Idiom(name, function.__module__.rpartition(".")[2], function, is_program)
    return function


def idiom(function: Body) -> Body:
    """Registers a body under its own name."""
    return _register(function, is_program=False)


def program(function: Body) -> Body:
    """Registers a program under its own name."""
    return _register(function, is_program=True)


def suite() -> dict[str, Idiom]:
    """Every idiom by name, in the order of the modules and of the code."""
    for module in pkgutil.iter_modules(idioms.__path__):
        importlib.import_module(f"{idioms.__name__}.{module.name}")
    return dict(_IDIOMS)
