"""The names in the statements of a module: which a statement binds, which it changes, which it looks up."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound(statement: ast.AST) -> set[str]:
    """The names that a top-level statement binds in its module."""
    if isinstance(statement, Definition):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Name):
        return {statement.id} if isinstance(statement.ctx, ast.Store) else set()
    return {name for node in _outside_functions(statement) for name in bound(node)}


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the statement does, and binds names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*Definition, ast.Import, ast.ImportFrom, ast.Name)):
            yield child
        elif not isinstance(child, ast.Lambda):
            yield from _outside_functions(child)


def changed(statement: ast.stmt) -> set[str]:
    """The names whose objects a top-level statement changes: `names.update(...)`, `table[0] = 1`, `@op.register_fake`."""
    if isinstance(statement, Definition):
        methods = [d.func if isinstance(d, ast.Call) else d for d in statement.decorator_list]
        return {root for method in methods if isinstance(method, ast.Attribute) and (root := root_of(method))} - {
            statement.name
        }
    if isinstance(statement, ast.Expr):
        root = root_of(statement.value)
        return {root} if root else set()
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {root for target in targets if not isinstance(target, ast.Name) and (root := root_of(target))}
    return set()


def root_of(node: ast.expr) -> str | None:
    """The name at the beginning of `a.b[c](d).e`."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return None
    return node.id


def global_names(text: str) -> set[str]:
    """What a statement looks up in its module, when it runs and in every function below it."""
    top = symtable.symtable(text, "<source>", "exec")
    found = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    waiting = list(top.get_children())
    while waiting:
        table = waiting.pop()
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        waiting += table.get_children()
    return found


def first_line(node: ast.AST) -> int:
    """Where a statement begins, its decorators included."""
    return min(getattr(part, "lineno", 0) for part in (node, *getattr(node, "decorator_list", [])))
