"""Leaves out the sides of branches that a case does not take, where that cannot change what the others do.

Folded are tests that only look at a host string or at whether a name is None: to leave such a test out loses no read of a
device value, which may be the very fault. What stays is the source as it was written, moved to the left.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import NamedTuple

from capfuzz.repro.names import first_line
from capfuzz.repro.reach import Arcs

_Block = list[ast.stmt]
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)


class _Side(NamedTuple):
    """One side of a branch, and the line that it begins with: a comment may come first."""

    block: _Block
    begin: int


class Folded:
    """What becomes of the lines of one file: `deleted`, or moved to the left by `dedented` columns."""

    def __init__(self, arcs: Arcs, file: str) -> None:
        self.deleted: set[int] = set()
        self.dedented: Counter[int] = Counter()
        self._taken: dict[int, set[int]] = {}
        for where, line, after in arcs:
            if where == file:
                self._taken.setdefault(line, set()).add(after)

    def fold(self, node: ast.AST) -> None:
        """Folds every branch below `node`."""
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if name == "orelse" and isinstance(block, list) and _is_elif(node, block):
                self.fold(block[0])  # its own test has no block to be replaced in
            elif isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                self._block(block)
        for handler in getattr(node, "handlers", []):
            self._block(handler.body)

    def _block(self, block: _Block) -> None:
        """Folds the statements of a block, and deletes those behind one that now leaves it every time."""
        for place, statement in enumerate(block):
            side = self._side(statement) if isinstance(statement, ast.If) else None
            if side is None or not (side.block or len(block) > 1):  # a block cannot be empty
                self.fold(statement)
            elif self._replace(statement, side) and place + 1 < len(block):
                self._delete(_end(statement) + 1, _end(block[-1]))
                return

    def _side(self, branch: ast.If) -> _Side | None:
        """The only side that was taken, empty where none was. None where that cannot be said, or both were."""
        after = self._taken.get(branch.lineno)
        if not after or not _looks_at_names(branch.test) or _has_long_text(branch) or branch.body[0].lineno == branch.lineno:
            return None
        first = branch.body[0].lineno
        if after == {first}:
            return _Side(branch.body, _end(branch.test) + 1)
        if first in after:
            return None
        if _is_elif(branch, branch.orelse):
            [other] = branch.orelse
            assert isinstance(other, ast.If)
            return self._side(other)
        return _Side(branch.orelse, first_line(branch.orelse[0]) if branch.orelse else 0)

    def _replace(self, branch: ast.stmt, side: _Side) -> bool:
        """Puts a side in the place of the branch; whether it always leaves the block that the branch is in."""
        block = side.block
        if not block:
            self._delete(branch.lineno, _end(branch))
            return False
        last = _end(block[-1])
        self._delete(branch.lineno, side.begin - 1)
        self._delete(last + 1, _end(branch))
        for line in range(side.begin, last + 1):
            self.dedented[line] += block[0].col_offset - branch.col_offset
        self._block(block)
        return isinstance(block[-1], _LEAVES)

    def _delete(self, first: int, last: int) -> None:
        self.deleted.update(range(first, last + 1))


def _is_elif(node: ast.AST, block: _Block) -> bool:
    is_branch = isinstance(node, ast.If) and len(block) == 1 and isinstance(block[0], ast.If)
    return is_branch and block[0].col_offset == getattr(node, "col_offset", None)


def _end(statement: ast.stmt | ast.expr) -> int:
    return statement.end_lineno or statement.lineno


def _has_long_text(branch: ast.If) -> bool:
    """A text over several lines cannot be moved without being changed."""
    texts = (node for node in ast.walk(branch) if isinstance(node, (ast.Constant, ast.JoinedStr)))
    return any(node.end_lineno != node.lineno for node in texts)


def _looks_at_names(test: ast.expr) -> bool:
    """`op == "align"`, `inputs["path"] != "by_mode"`, `rank is None`, and what `and`, `or` and `not` make of them."""
    if isinstance(test, ast.BoolOp):
        return all(map(_looks_at_names, test.values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _looks_at_names(test.operand)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not _is_name(test.left):
        return False
    [operation], [right] = test.ops, test.comparators
    if isinstance(operation, (ast.Eq, ast.NotEq)):
        return _is_text(right)
    if isinstance(operation, (ast.In, ast.NotIn)):
        return isinstance(right, (ast.Tuple, ast.List, ast.Set)) and all(map(_is_text, right.elts))
    return isinstance(operation, (ast.Is, ast.IsNot)) and isinstance(right, ast.Constant) and right.value is None


def _is_name(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and _is_text(node.slice)
    return isinstance(node, ast.Name)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
