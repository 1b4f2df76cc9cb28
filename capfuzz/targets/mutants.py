"""Mechanical capture-safety mutants of a shipped implementation: the faults that people really make, made one at a time.

A mutant changes one place in the source of the implementation's module. Whether it is a fault depends on the place: one that no
case can tell from the original is *equivalent*, and the target names it with the reason (`Target.equivalent_mutants`).
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from capfuzz.differential import Implementation, Runner, TwoPart, callables_of
from capfuzz.targets.model import Target
from capfuzz.targets.reach import reachable

FROZEN = "frozen_inputs"
Change = Callable[[ast.AST], ast.AST | None]
"""The changed node, or None where there is nothing for this kind of change."""

_FILLS = frozenset(["zero_", "fill_", "copy_", "masked_fill_", "index_fill_", "scatter_"])


@dataclass(frozen=True)
class Mutant:
    """`name` says the kind of change, the function and the line in it: `drop_fill@lens_to_indptr:4`."""

    name: str
    function: Implementation
    text: str
    """The changed line."""


def scalar_store(node: ast.AST) -> ast.AST | None:
    """`buf[:1].zero_()` becomes `buf[0] = 0`."""
    call = _method_call(node, {"zero_", "fill_"})
    if call is None or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Subscript):
        return None
    where = call.func.value
    if not (isinstance(where.slice, ast.Slice) and isinstance(where.slice.upper, ast.Constant) and where.slice.lower is None):
        return None
    value = call.args[0] if call.args else ast.Constant(0)
    return ast.Assign([ast.Subscript(where.value, ast.Constant(0), ast.Store())], value)


def drop_fill(node: ast.AST) -> ast.AST | None:
    """A statement that fills part of a buffer is left out."""
    return ast.Pass() if _method_call(node, _FILLS) is not None else None


def drop_output_size(node: ast.AST) -> ast.AST | None:
    """`repeat_interleave` without its `output_size` asks the device."""
    return _without_keyword(node, "output_size")


def fresh_out(node: ast.AST) -> ast.AST | None:
    """An `out=` is left out: the answer goes into a fresh tensor."""
    return _without_keyword(node, "out")


def narrow(node: ast.AST) -> ast.AST | None:
    """int64 arithmetic is done in int32."""
    if isinstance(node, ast.Attribute) and node.attr == "int64":
        return ast.Attribute(node.value, "int32", node.ctx)
    if isinstance(node, ast.Attribute) and node.attr == "long":
        return ast.Attribute(node.value, "int", node.ctx)
    return None


def drop_clone(node: ast.AST) -> ast.AST | None:
    """A `clone` or `contiguous` is left out."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("clone", "contiguous"):
        return node.func.value
    return None


def drop_clamp(node: ast.AST) -> ast.AST | None:
    """A `clamp` is left out."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("clamp", "clamp_min", "clamp_max")
    ):
        inner = node.func.value
        return node.args[0] if isinstance(inner, ast.Name) and inner.id == "torch" else inner
    return None


_CHANGES: dict[str, Change] = {
    change.__name__: change for change in (scalar_store, drop_fill, drop_output_size, fresh_out, narrow, drop_clone, drop_clamp)
}


def mutants(target: Target) -> Iterator[Mutant]:
    """Every mutant of a target's shipped implementation, and of the functions of its module that it calls."""
    shipped = target.implementation
    for function in reachable(callables_of(shipped)):
        yield from _changed(target, function)
    if not isinstance(shipped, (TwoPart, Runner)):
        yield from _whole(target, shipped)
    yield Mutant(FROZEN, frozen(shipped), "the graph reads copies of its first inputs")


def mutant(target: Target, name: str) -> Mutant:
    """The mutant of that name. Raises `KeyError`."""
    return {found.name: found for found in mutants(target)}[name]


def _changed(target: Target, function: types.FunctionType) -> Iterator[Mutant]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    places = list(ast.walk(tree))
    for kind, change in _CHANGES.items():
        for position, place in enumerate(places):
            if change(place) is None:
                continue
            mutated = copy.deepcopy(tree)
            node = list(ast.walk(mutated))[position]
            new = change(node)
            assert new is not None
            _put(mutated, node, new)
            line = getattr(node, "lineno", 0)
            yield Mutant(f"{kind}@{function.__name__}:{line}", _rebuilt(target, function, mutated), ast.unparse(new).strip())


def _whole(target: Target, shipped: Callable[..., Any]) -> Iterator[Mutant]:
    """Mutants of the whole call: an answer that is cached, and a device count that the host reads."""
    kept: dict[tuple[object, ...], Any] = {}

    @functools.wraps(shipped)
    def cached(**arguments: Any) -> Any:
        key = tuple(id(value) if hasattr(value, "data_ptr") else value for value in arguments.values())
        if key not in kept or len(kept) > 64:
            kept.clear()
            kept[key] = shipped(**arguments), arguments
        return kept[key][0]

    yield Mutant("cache_answer", cached, "return the answer of the first call with these tensors")

    @functools.wraps(shipped)
    def reads(**arguments: Any) -> Any:
        counts = [value for value in arguments.values() if hasattr(value, "data_ptr") and value.dim() == 0 and value.is_cuda]
        for value in counts or [v[:1].sum() for v in arguments.values() if hasattr(v, "data_ptr") and v.is_cuda and v.dim()]:
            value.item()
        return shipped(**arguments)

    yield Mutant("item_read", reads, "the host reads a device value")


def frozen(shipped: Implementation) -> Implementation:
    """An implementation whose graph does not depend on its static inputs, but for those that the op writes.

    Where no case tells it from the shipped one, no replay of the target can fail.
    """
    if isinstance(shipped, Runner):
        made = shipped.make

        def make() -> Callable[..., Any]:
            runner = made()
            first: dict[str, Any] = {}

            def call(**arguments: Any) -> Any:
                for name, value in arguments.items():
                    if name not in first or getattr(first[name], "shape", None) != getattr(value, "shape", None):
                        first[name] = _copied(value)
                return runner(**first)

            return call

        return Runner(shipped.eager, make, shipped.may_hold)
    if isinstance(shipped, TwoPart):
        return TwoPart(shipped.prepare, _frozen_body(shipped.body))
    return _frozen_body(shipped)


_MOST_KEPT = 8


def _frozen_body(body: Callable[..., Any]) -> Callable[..., Any]:
    kept: dict[tuple[int, ...], tuple[Any, dict[str, Any]]] = {}

    @functools.wraps(body)
    def froze(*prepared: Any, **arguments: Any) -> Any:
        given = {**{f"prepared {place}": value for place, value in enumerate(prepared)}, **arguments}
        key = tuple(map(id, arguments.values()))
        if not torch.cuda.is_current_stream_capturing():
            before = {name: _copied(value) for name, value in given.items()}
            result = body(*prepared, **arguments)
            if len(kept) >= _MOST_KEPT:
                del kept[next(iter(kept))]
            # The arguments are held, for no others to have their identity.
            kept[key] = arguments, {name: copied for name, copied in before.items() if _same(copied, given[name])}
            return result
        used = {**given, **(kept[key][1] if key in kept else {})}
        return body(*(used.pop(f"prepared {place}") for place in range(len(prepared))), **used)

    return froze


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {name: _copied(item) for name, item in value.items()}
    return value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(a.tolist() == b.tolist())
    if isinstance(a, (list, tuple)) and not hasattr(a, "_fields"):
        return all(map(_same, a, b))
    if type(a) is dict:
        return all(_same(a[name], b[name]) for name in a)
    return a is b


def _rebuilt(target: Target, function: types.FunctionType, tree: ast.Module) -> Implementation:
    """The shipped implementation with `function` replaced, in a copy of its module's names."""
    ast.fix_missing_locations(tree)
    names = dict(function.__globals__)
    exec(compile(tree, function.__code__.co_filename, "exec"), names)  # our own source, changed in one place
    for name, value in list(names.items()):
        if isinstance(value, types.FunctionType) and value.__module__ == function.__module__ and name != function.__name__:
            moved = types.FunctionType(value.__code__, names, value.__name__, value.__defaults__, value.__closure__)
            moved.__kwdefaults__ = value.__kwdefaults__
            names[name] = moved
    shipped = target.implementation
    if isinstance(shipped, TwoPart):
        return TwoPart(names[shipped.prepare.__name__], names[shipped.body.__name__])
    if isinstance(shipped, Runner):
        return Runner(names[shipped.eager.__name__], names[shipped.make.__name__], shipped.may_hold)
    rebuilt: Callable[..., Any] = names[shipped.__name__]
    return rebuilt


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return ast.copy_location(new, old) if node is old else self.generic_visit(node)

    Swap().visit(tree)


def _method_call(node: ast.AST, names: set[str] | frozenset[str]) -> ast.Call | None:
    """The call of a statement that only calls such a method."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        return node.value if node.value.func.attr in names else None
    return None


def _without_keyword(node: ast.AST, name: str) -> ast.AST | None:
    if isinstance(node, ast.Call) and any(keyword.arg == name for keyword in node.keywords):
        return ast.Call(node.func, node.args, [keyword for keyword in node.keywords if keyword.arg != name])
    return None
