"""Puts simulated names in the place of PyTorch's, and back.

Each replacement looks at the calling thread: a thread with a simulated machine gets it, every other thread gets the original.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from capfuzz.devices.sim.runtime import active

_MISSING = object()


def function_for_this_thread(simulated: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """The simulated function in a thread with a machine, the original in every other."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (simulated if active() is not None else original)(*args, **kwargs)

    if callable(original):
        functools.update_wrapper(call, original)
    return call


def class_for_this_thread(simulated: type, original: type) -> type:
    """A class that makes simulated objects in a thread with a machine; `isinstance` accepts both kinds."""

    class Chooser(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return (simulated if active() is not None else original)(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (simulated, original))

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, (simulated, original))

        def __getattr__(cls, name: str) -> Any:
            return getattr(simulated if active() is not None else original, name)

    return Chooser(simulated.__name__, (), {"__doc__": simulated.__doc__, "__module__": original.__module__})


Install = Callable[["Replacements"], None]


class Replacements:
    """The replaced names; put in place once, however many contexts are open."""

    def __init__(self, install: Install) -> None:
        self._install = install
        self._lock = threading.Lock()
        self._depth = 0
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._install(self)

    def uninstall(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            while self._originals:
                owner, name, original = self._originals.pop()
                if original is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name, _MISSING)))
        setattr(owner, name, value)

    def functions(self, owner: Any, table: dict[str, Callable[..., Any]]) -> None:
        """Functions that this torch does not have are left out."""
        for name, simulated in table.items():
            if hasattr(owner, name):
                self.put(owner, name, function_for_this_thread(simulated, getattr(owner, name)))

    def classes(self, owner: Any, table: dict[str, type]) -> None:
        for name, simulated in table.items():
            if hasattr(owner, name):
                self.put(owner, name, class_for_this_thread(simulated, getattr(owner, name)))
