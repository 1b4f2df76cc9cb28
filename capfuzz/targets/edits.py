"""Small edits of a function's source, each in one place: what a fault of one line is mended by.

They undo what people do wrong: a statement too many, a conversion too narrow, the wrong one of two values, a bound that is not
kept, an argument that a key lacks. `mutants` are the other way round.
"""

from __future__ import annotations

import ast
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from capfuzz.devices.trace import SourceLocation


@dataclass(frozen=True)
class Edit:
    """A statement and what stands in its place, as one line each; `after` is empty where it is left out."""

    location: SourceLocation
    before: str
    after: str
    function: types.FunctionType
    code: types.CodeType
    """Of the whole function, edited."""


@dataclass(frozen=True)
class _Place:
    """A function in the source of its file."""

    source: bytes
    function: ast.FunctionDef
    owner: types.FunctionType

    def statements(self) -> list[ast.stmt]:
        """What can be edited, in the order of the lines: all but the function itself and docstrings."""
        inner = [node for node in ast.walk(self.function) if isinstance(node, ast.stmt) and node is not self.function]
        return sorted((each for each in inner if not _is_docstring(each)), key=lambda each: (each.lineno, each.col_offset))

    def text(self, node: ast.AST) -> str:
        """The node's own source, in parentheses where it needs them."""
        text = ast.get_source_segment(self.source.decode(), node) or ast.unparse(node)
        whole = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)
        return text if isinstance(node, whole) else f"({text})"


_Change = Callable[[_Place, ast.stmt], Iterator[tuple[ast.AST, str]]]
"""The nodes of a statement that can be replaced, each with the source that takes its place."""


def leave_out(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """A statement that is not there."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)):
        yield statement, "pass"


def take_operand(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """One of its operands in place of an operation: `x.to(torch.int32)` becomes `x`, `x + 1` becomes `x`."""
    for node in _expressions(statement):
        for operand in _operands(node):
            yield node, place.text(operand)


def widen(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """int64 in place of int32."""
    for node in _expressions(statement):
        if isinstance(node, ast.Attribute) and node.attr in ("int32", "int"):
            yield node, f"{place.text(node.value)}.{'int64' if node.attr == 'int32' else 'long'}"


def take_name(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """A value that is there already in place of the one that is made."""
    if isinstance(statement, ast.Assign) and not isinstance(statement.value, (ast.Name, ast.Constant)):
        for name in _names_before(place.function, statement):
            yield statement.value, name


def clamp(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """A sum or a difference that does not fall below 0, a value that does not rise above another."""
    for node in _expressions(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            yield node, f"{place.text(node)}.clamp_min(0)"
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign) and isinstance(value, (ast.BinOp, ast.Call)):
        for name in _names_before(place.function, statement):
            yield value, f"{place.text(value)}.clamp_max({name})"


def drop_argument(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """A call without one of its keyword arguments."""
    for node in _expressions(statement):
        if isinstance(node, ast.Call):
            for dropped in node.keywords:
                if dropped.arg is not None:
                    kept = [keyword for keyword in node.keywords if keyword is not dropped]
                    yield node, ast.unparse(ast.Call(node.func, node.args, kept))


def complete_key(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """A tuple that has one argument of the function more: the key of a cache or of a graph."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        elements = [place.text(element) for element in statement.value.elts]
        used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        for name in _parameters(place.function):
            if name not in used:
                yield statement.value, f"({', '.join([*elements, name])})"


def leave_out_branch(place: _Place, statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """An `if` that is not there."""
    if isinstance(statement, ast.If) and not statement.orelse:
        yield statement, "pass"


CHANGES: tuple[_Change, ...] = (
    leave_out,
    take_operand,
    widen,
    take_name,
    clamp,
    drop_argument,
    complete_key,
    leave_out_branch,
)
"""From those that say most about the line to those that say least."""


def edits(functions: Sequence[types.FunctionType]) -> Iterator[Edit]:
    """Every edit of these functions, kind by kind, each in the order of the lines; none where there is no source."""
    places = [place for place in map(_place_of, functions) if place is not None]
    for change in CHANGES:
        for place in places:
            for statement in place.statements():
                for node, text in change(place, statement):
                    edit = _edited(place, statement, node, text)
                    if edit is not None:
                        yield edit


def _edited(place: _Place, statement: ast.stmt, node: ast.AST, text: str) -> Edit | None:
    source = place.source.decode()
    before = ast.get_source_segment(source, statement) or ""
    begin, end = _span(place.source, node)
    changed = place.source[:begin] + text.encode() + place.source[end:]
    first, last = _span(place.source, statement)
    after = changed[first : last + len(changed) - len(place.source)].decode()
    unchanged = place.owner.__code__
    code = _compiled(changed, unchanged)
    if code is None:
        return None
    one_line = " ".join(before.split())
    location = SourceLocation(unchanged.co_filename, statement.lineno, unchanged.co_name, _line(source, statement.lineno))
    return Edit(location, one_line, "" if after == "pass" else " ".join(after.split()), place.owner, code)


def _compiled(source: bytes, like: types.CodeType) -> types.CodeType | None:
    """The code of the function in the changed source that `like` is in the unchanged one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = compile(source, like.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    waiting = [module]
    while waiting:
        code = waiting.pop()
        if (code.co_name, code.co_firstlineno) == (like.co_name, like.co_firstlineno):
            return code if code.co_freevars == like.co_freevars else None
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return None


def _place_of(function: types.FunctionType) -> _Place | None:
    code = function.__code__
    try:
        with open(code.co_filename, "rb") as file:
            source = file.read()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return _Place(source, node, function)
    return None


def _span(source: bytes, node: ast.AST) -> tuple[int, int]:
    """Where a node begins and ends in the source, in bytes."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    at = vars(node)
    return starts[at["lineno"] - 1] + at["col_offset"], starts[at["end_lineno"] - 1] + at["end_col_offset"]


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a simple statement."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)) and statement.value is not None:
        yield from ast.walk(statement.value)


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
        yield from (argument for argument in node.args if not isinstance(argument, (ast.Constant, ast.Starred)))
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp):
        yield from node.values


def _names_before(function: ast.FunctionDef, statement: ast.stmt) -> list[str]:
    """The arguments, and what was assigned above a statement."""
    stored = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    above = [node.id for node in stored if node.lineno < statement.lineno]
    return list(dict.fromkeys([*_parameters(function), *above]))


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _line(source: str, number: int) -> str:
    return source.splitlines()[number - 1].strip()
