"""The source of a function that stands alone: the function, and what it names of its own module, and nothing else.

A module is read as its top-level statements. One is needed if it binds or changes a name that a needed one uses; the names are
those that the compiler takes for global ones. Imports stay imports, but for modules of capfuzz, which are followed: who reads
the script need not have it. Type hints go, and so do the decorators that register a variant.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import types
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from capfuzz.repro.names import Function, bound, changed, first_line, global_names
from capfuzz.repro.reach import Arcs
from capfuzz.repro.strip import stripped


class CannotStandAloneError(ValueError):
    """The function needs more than source that can be copied; the text says what."""


@dataclass(frozen=True)
class Source:
    """`imports` and `statements` as text, in the order in which they run. `names` are what the functions are called there."""

    imports: list[str]
    statements: list[str]
    names: list[str]
    packages: set[str]
    """Top-level packages that are imported, other than torch and the standard library."""

    @property
    def bound(self) -> set[str]:
        """The names that its statements and imports bind."""
        lines = [*self.imports, *self.statements]
        return {name for text in lines for statement in ast.parse(text).body for name in bound(statement)}

    @property
    def words(self) -> set[str]:
        """Every name and attribute that occurs."""
        return set(re.findall(r"\w+", "\n".join(self.statements)))


def standalone(functions: Sequence[Callable[..., Any]], arcs: Arcs = frozenset()) -> Source:
    """The source of these functions. Raises `CannotStandAloneError`.

    With `arcs`, what one case takes, a branch on a name (`if op == "align":`) of which that case takes one side is replaced by
    that side; what only the other side calls goes with it.
    """
    reader = _Reader(arcs)
    names = [reader.addroot_of(function) for function in functions]
    return reader.source(names)


class _Module:
    """A module as its top-level statements, and what each binds."""

    def __init__(self, name: str, namespace: dict[str, Any]) -> None:
        module = sys.modules.get(name)
        try:
            self.text = inspect.getsource(module) if module is not None else ""
        except (OSError, TypeError) as error:
            raise CannotStandAloneError(f"the source of {name} cannot be read: {error}") from error
        self.name = name
        self.package = str(namespace.get("__package__") or "")
        self.namespace = namespace
        self.tree = ast.parse(self.text)
        self.needed: dict[int, str] = {}  # statements by their place, as text
        self.roots: list[str] = []
        self.binds: list[set[str]] = [bound(statement) for statement in self.tree.body]
        imported = {name for s in self.tree.body if isinstance(s, (ast.Import, ast.ImportFrom)) for name in bound(s)}
        self.changes: list[set[str]] = [changed(statement) - imported for statement in self.tree.body]
        self.follows: list[_Module] = []  # the modules that it needs something from

    def places(self, name: str) -> list[int]:
        """The statements that bind `name`, or change it."""
        return [i for i in range(len(self.binds)) if name in self.binds[i] or name in self.changes[i]]


@dataclass
class _Reader:
    arcs: Arcs
    modules: dict[str, _Module] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)  # the line, by the name that it binds
    packages: set[str] = field(default_factory=set)
    owner: dict[str, str] = field(default_factory=dict)  # which module a name is from

    def module(self, name: str) -> _Module:
        if name not in self.modules:
            self.modules[name] = _Module(name, vars(sys.modules[name]) if name in sys.modules else {})
        return self.modules[name]

    def addroot_of(self, function: Callable[..., Any]) -> str:
        """Adds a function and what it needs; the name that it has in the script."""
        name = str(getattr(function, "__name__", type(function).__name__))
        module = self.module(str(getattr(function, "__module__", None)))
        is_function = isinstance(function, types.FunctionType)
        node = _definition_of(module, function.__code__) if isinstance(function, types.FunctionType) else None
        if node in module.tree.body and is_function and function.__closure__ is None:
            assert node is not None
            text = stripped(module.text, module.namespace, node, self.arcs, is_root=True)
            self._claim(node.name, module.name)
            module.needed[module.tree.body.index(node)] = text
            self._need_names(module, text)
            return node.name
        if module.namespace.get(name) is function and module.places(name):
            self._need(module, name)
            return name
        if node is None or not isinstance(function, types.FunctionType):
            raise CannotStandAloneError(f"{name} is made at run time, and is no function of {module.name} that can be copied")
        return self._add_local(module, node, function)

    def _add_local(self, module: _Module, node: ast.FunctionDef | ast.AsyncFunctionDef, function: types.FunctionType) -> str:
        """A function that another one has made, with what it has from there."""
        text = stripped(module.text, module.namespace, node, self.arcs, is_root=True)
        free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for name, cell in free.items():
            value = cell.cell_contents
            if callable(value):
                called = self.addroot_of(value)
                if called != name:
                    module.roots.append(f"{name} = {called}")
            elif isinstance(value, (int, float, str, bool, type(None))):
                module.roots.append(f"{name} = {value!r}")
            else:
                raise CannotStandAloneError(f"{node.name} of {module.name} has {name} from the function that made it")
        called = node.name
        if any(called in binds for binds in module.binds):  # a global one has that name
            called = f"{called}_"
            text = re.sub(rf"\bdef {node.name}\b", f"def {called}", text, count=1)
        self._need_names(module, text, set(free))
        module.roots.append(text)
        return called

    def _need(self, module: _Module, name: str) -> None:
        for place in module.places(name):
            if place in module.needed:
                continue
            statement = module.tree.body[place]
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._import(module, statement, name)
                continue
            self._claim(name, module.name)
            text = stripped(module.text, module.namespace, statement, self.arcs)
            module.needed[place] = text
            self._need_names(module, text)

    def _claim(self, name: str, origin: str) -> None:
        """In the script there is one namespace."""
        if self.owner.setdefault(name, origin) != origin:
            raise CannotStandAloneError(f"{name} is one thing in {self.owner[name]} and another in {origin}")

    def _need_names(self, module: _Module, text: str, known: AbstractSet[str] = frozenset()) -> None:
        for name in sorted(global_names(text) - known):
            if module.places(name):
                self._need(module, name)
            elif not hasattr(builtins, name) and name not in ("__name__", "__file__") and name in module.namespace:
                raise CannotStandAloneError(f"no statement of {module.name} says what {name} is")

    def _import(self, module: _Module, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        [alias] = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name]
        renamed = f" as {alias.asname}" if alias.asname else ""
        if isinstance(statement, ast.Import):
            origin, line = alias.name, f"import {alias.name}{renamed}"
        else:
            origin = _absolute(module, statement)
            line = f"from {origin} import {alias.name}{renamed}"
        package = origin.partition(".")[0]
        if package == "capfuzz":
            if isinstance(statement, ast.Import) or alias.asname:
                raise CannotStandAloneError(f"{module.name} imports from capfuzz by `{line}`")
            module.follows.append(self.module(origin))
            self._need(self.module(origin), name)
            return
        self._claim(name, line)
        self.imports[name] = line
        if package != "torch" and package not in sys.stdlib_module_names:
            self.packages.add(package)

    def _in_order(self) -> list[_Module]:
        """A module comes behind those that it needs something from."""
        ordered: list[_Module] = []

        def add(module: _Module) -> None:
            for below in module.follows:
                add(below)
            if module not in ordered:
                ordered.append(module)

        for module in self.modules.values():
            add(module)
        return ordered

    def source(self, names: list[str]) -> Source:
        statements: list[str] = []
        for module in self._in_order():
            statements += [text for _, text in sorted(module.needed.items())] + module.roots
        imports = sorted(set(self.imports.values()), key=lambda line: (line.startswith("from "), line))
        return Source(imports, statements, names, self.packages)


def _absolute(module: _Module, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return str(statement.module)
    parents = module.package.split(".")
    base = parents[: len(parents) - statement.level + 1]
    return ".".join([*base, *([statement.module] if statement.module else [])])


def _definition_of(module: _Module, code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    if code.co_filename != module.namespace.get("__file__"):
        return None
    for node in ast.walk(module.tree):
        if isinstance(node, Function) and node.name == code.co_name and code.co_firstlineno == first_line(node):
            return node
    return None
