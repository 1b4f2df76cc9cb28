"""The text of a statement as it goes into a script: the author's own, less what only its own module needs."""

from __future__ import annotations

import ast
import copy
import io
import textwrap
import tokenize
from collections.abc import Mapping, Sequence
from typing import Any

from capfuzz.repro.fold import Folded
from capfuzz.repro.names import Definition, Function, first_line, root_of
from capfuzz.repro.reach import Arcs
from capfuzz.targets import Target

WIDTH = 120
_Edit = tuple[int, int, bytes]
"""From, to, what comes there; in bytes of the module's source."""


def stripped(source: str, namespace: Mapping[str, Any], statement: ast.stmt, arcs: Arcs, is_root: bool = False) -> str:
    """The text of a statement without type hints, docstrings, decorators that register it, and sides that are not taken.

    A root goes without any decorator, and keeps a short docstring: for a variant it says what the fault is.
    """
    text = _Text(source, namespace, statement, is_root).edited(Folded(arcs, str(namespace.get("__file__"))))
    try:
        ast.parse(text)
    except SyntaxError:  # what is left of a block was nothing
        return _Text(source, namespace, statement, is_root).edited(Folded(frozenset(), ""))
    return text


class _Text:
    """One statement, and the edits that are made in its text."""

    def __init__(self, source: str, namespace: Mapping[str, Any], statement: ast.stmt, is_root: bool) -> None:
        self._lines = source.encode().splitlines(keepends=True)
        self._data = b"".join(self._lines)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._namespace = namespace
        self._statement = statement
        self._root = statement if is_root else None

    def edited(self, folded: Folded) -> str:
        edits = [edit for node in ast.walk(self._statement) for edit in self._edits(node)]
        edits += self._folds(folded)
        begin = self._starts[first_line(self._statement) - 1]
        at, pieces = begin, list[bytes]()
        for left, right, new in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
            if left >= at:  # else it lies in what is gone
                pieces += [self._data[at:left], new]
                at = right
        pieces.append(self._data[at : self._starts[self._statement.end_lineno or 0]])
        text = textwrap.dedent(b"".join(pieces).decode())
        if _has_long_text(self._statement):
            return text.strip("\n")
        return "\n".join(line for line in text.splitlines() if line.strip())

    def _edits(self, node: ast.AST) -> list[_Edit]:
        if isinstance(node, ast.AnnAssign) and (node.value is not None or self._is_field(node)):
            # A hint in the body of a class says that there is a field.
            hint = b": object" if self._is_field(node) else b""
            return [(self._end(node.target), self._end(node.annotation), hint)]
        if not isinstance(node, Definition):
            return []
        kept = [] if node is self._root else self._kept_decorators(node)
        edits = [self._whole(decorator) for decorator in node.decorator_list if decorator not in kept]
        if isinstance(node, Function) and not _needs_hints(kept):
            begin = self._starts[node.lineno - 1] + node.col_offset
            edits.append((begin, begin + _header_length(self._data[begin:]), _header(node)))
        docstring = _docstring(node, keeps_short=node is self._root)
        return edits if docstring is None else [*edits, self._whole(docstring)]

    def _folds(self, folded: Folded) -> list[_Edit]:
        folded.fold(self._statement)
        edits = [(self._starts[line - 1], self._starts[line], b"") for line in folded.deleted]
        for line, columns in folded.dedented.items():
            begin, text = self._starts[line - 1], self._lines[line - 1]
            spaces = len(text) - len(text.lstrip(b" "))
            if line not in folded.deleted and spaces:
                edits.append((begin, begin + min(columns, spaces), b""))
        return edits

    def _end(self, node: ast.expr) -> int:
        return self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _whole(self, node: ast.expr | ast.stmt) -> _Edit:
        """Every line of a node goes."""
        return self._starts[node.lineno - 1], self._starts[node.end_lineno or 0], b""

    def _kept_decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[ast.expr]:
        return [d for d in node.decorator_list if not isinstance(self._namespace.get(root_of(d) or ""), Target)]

    def _is_field(self, node: ast.AnnAssign) -> bool:
        return any(isinstance(outer, ast.ClassDef) and node in outer.body for outer in ast.walk(self._statement))


def _has_long_text(statement: ast.stmt) -> bool:
    """Whether there is a text over several lines, in which blank ones count; a docstring goes."""
    texts = (node for node in ast.walk(statement) if isinstance(node, (ast.Constant, ast.JoinedStr)))
    long = {id(node) for node in texts if node.end_lineno != node.lineno}
    return bool(long - {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Expr)})


def _needs_hints(decorators: Sequence[ast.expr]) -> bool:
    """Whether a decorator may look at the hints, as those of custom ops and of Triton do."""
    return any(root_of(decorator) not in ("functools", "staticmethod", "classmethod", "property") for decorator in decorators)


def _docstring(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, keeps_short: bool) -> ast.stmt | None:
    """The docstring that goes: one over several lines, or any; but a body cannot be empty."""
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    is_alone = len(node.body) == 1 or node.body[1].lineno == first.lineno or first.lineno == node.lineno
    return first if is_text and not is_alone and not (keeps_short and first.end_lineno == first.lineno) else None


def _header_length(data: bytes) -> int:
    """How many bytes `def name(...):` has, which may run over lines."""
    depth = 0
    lines = data.splitlines(keepends=True)
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        elif token.type == tokenize.OP and token.string == ":" and not depth:
            row, column = token.end
            return sum(map(len, lines[: row - 1])) + len(lines[row - 1].decode()[:column].encode())
    raise AssertionError("a function without a header")


def _header(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bytes:
    bare = copy.deepcopy(node)
    bare.body, bare.decorator_list, bare.returns = [ast.Pass()], [], None
    for argument in ast.walk(bare.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    text = ast.unparse(bare).splitlines()[0]
    indent = " " * (node.col_offset + 8)
    return "\n".join(textwrap.wrap(text, WIDTH - node.col_offset, subsequent_indent=indent, break_long_words=False)).encode()
