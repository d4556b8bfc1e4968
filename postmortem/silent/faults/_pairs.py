"""Whether the source of a program handles two arrays whose rows belong together in different ways."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from postmortem.silent.facts import Place
from postmortem.silent.source import called, source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PERMUTES = {"randperm", "permutation", "permuted", "shuffle"}
ORDERS = _PERMUTES | {"argsort", "lexsort", "sort", "sorted"}
"""Calls that give an order, or something in another order."""
_DRAWS = {"randint", "choice", "integers", "multinomial"}
_PAIRS = {"zip", "TensorDataset"}
_CONVERTS = {"from_numpy", "tensor", "as_tensor", "asarray", "array"}


class _Way(NamedTuple):
    """How a statement chooses rows of an array: "permutes", "draws rows of" or "cuts" it, with these as the index."""

    statement: ast.stmt
    name: str
    kind: str
    rows: str


def apart(file: str) -> tuple[Place, str] | None:
    """The line that permutes, draws or cuts rows of one array in another way than those of the other one, and what it
    does."""
    tree = source(file).tree
    if tree is None:
        return None
    for block in blocks(tree):
        for first, second in pairwise(way for statement in block for way in _ways(statement)):
            alike = first.kind == second.kind and first.name != second.name
            if alike and (first.kind != "cuts" or first.rows != second.rows):
                return Place(file, second.statement.lineno), (
                    f"the source {first.kind} {first.name} and {second.name} differently"
                )
    return _alone(file, tree)


def _alone(file: str, tree: ast.Module) -> tuple[Place, str] | None:
    """One of two arrays whose rows are used together is permuted in its place, the other one never is."""
    permuted = [way for block in blocks(tree) for s in block if (way := _in_place(s, tree)) is not None]
    names = {way.name for way in permuted}
    for way in permuted:
        partners = _partners(tree, way.name)
        if not partners or partners & names:
            continue
        if all(_assigned(tree, other) < way.statement.lineno for other in partners):
            others = " and ".join(sorted(partners))
            return Place(file, way.statement.lineno), f"the source permutes {way.name}, but not {others}"
    return None


def _in_place(statement: ast.stmt, tree: ast.Module) -> _Way | None:
    """`shuffle(x)`, `x = x[randperm(n)]`, or `x = x[order]` where `order` is a permutation."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        given = statement.value.args
        shuffles = called(statement.value) == "shuffle" and bool(given)
        return _Way(statement, ast.unparse(given[0]), "permutes", "") if shuffles else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = ast.unparse(statement.targets[0]), statement.value
    if not isinstance(value, ast.Subscript) or ast.unparse(value.value) != target:
        return None
    calls = [value.slice, *_values_of(tree, value.slice)]
    found = any(called(n) in _PERMUTES for each in calls for n in ast.walk(each))
    return _Way(statement, target, "permutes", ast.unparse(value.slice)) if found else None


def _values_of(tree: ast.Module, name: ast.expr) -> list[ast.expr]:
    """What is assigned to a name."""
    if not isinstance(name, ast.Name):
        return []
    assigns = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)]
    return [n.value for n in assigns if any(isinstance(t, ast.Name) and t.id == name.id for t in n.targets)]


def _partners(tree: ast.Module, name: str) -> set[str]:
    """Arrays of which the source takes the rows of the same index next to those of `name`, or that it zips with it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            parts: Sequence[ast.expr] = node.elts
        elif isinstance(node, ast.Call):
            parts = node.args
        else:
            continue
        rows = [_rows(part) for part in parts]
        if isinstance(node, ast.Call) and called(node) in _PAIRS:
            rows = [{(array_of(part), "")} for part in parts]
        for index in {i for part in rows for n, i in part if n == name}:
            found |= {n for part in rows for n, i in part if i == index}
    return found - {name}


def _rows(part: ast.expr) -> set[tuple[str, str]]:
    """(array, index) of the subscripts in an expression."""
    return {(ast.unparse(n.value), ast.unparse(n.slice)) for n in ast.walk(part) if isinstance(n, ast.Subscript)}


def array_of(part: ast.expr) -> str:
    """`x` of `x.split(32)` and of `torch.from_numpy(x)`."""
    while isinstance(part, ast.Call):
        if called(part) in _CONVERTS and part.args:
            part = part.args[0]
        elif isinstance(part.func, ast.Attribute):
            part = part.func.value
        else:
            break
    return ast.unparse(part)


def _assigned(tree: ast.Module, name: str) -> int:
    """The last line that assigns a name."""
    stores = (n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Store))
    return max((n.lineno for n in stores if ast.unparse(n) == name), default=0)


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield [s for s in block if isinstance(s, ast.stmt)]


def _ways(statement: ast.stmt) -> Iterator[_Way]:
    """Of `x = x[randperm(n)]`, `shuffle(x)`, `a = x[randint(n, (8,))]`, `x = x[3:]`, also several in one statement."""
    if isinstance(statement, ast.Expr) and called(statement.value) == "shuffle":
        given = statement.value.args if isinstance(statement.value, ast.Call) else []
        if given:
            yield _Way(statement, ast.unparse(given[0]), "permutes", "")
        return
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    pairs = [(statement.targets[0], statement.value)]
    target, value = pairs[0]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts, strict=True))
    for single, of in pairs:
        name = ast.unparse(single)
        if any(called(n) in _PERMUTES for n in ast.walk(of)):
            yield _Way(statement, name, "permutes", "")
        elif isinstance(of, ast.Subscript) and any(called(n) in _DRAWS for n in ast.walk(of.slice)):
            yield _Way(statement, ast.unparse(of.value), "draws rows of", "")
        elif isinstance(of, ast.Subscript) and ast.unparse(of.value) == name:
            yield _Way(statement, name, "cuts", ast.unparse(of.slice))
