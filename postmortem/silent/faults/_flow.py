"""Which names of a file the inputs of a model come from, as its source shows it."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from postmortem.silent.source import called, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.silent.facts import Place

_COUNTS = {"range", "len", "arange", "randperm", "randint"}
"""Calls that give numbers and indices, whatever they are given."""


def names_behind(at: Place) -> set[str] | None:
    """The names, attributes and functions that values pass through on their way to the calls of a line; None where
    they come from out of the file (a method that a library calls).

    Every assignment of a name counts, in whatever scope; indices and counts are left out, as they choose values and do
    not become any.
    """
    read = source(at.file)
    statement = read.statement_at(at.line)
    if statement is None or read.tree is None:
        return None
    links = links_of(read.tree)
    found: set[str] = set()
    waiting = set(values(statement))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= links[name] - found
    around = read.function_at(at.line)
    given = {p.arg for p in around.args.args if p.arg != "self"} if around is not None else set()
    called_here = around is not None and any(called(n) == around.name for n in ast.walk(read.tree))
    return found if called_here or given.isdisjoint(found) else None


def links_of(tree: ast.Module) -> defaultdict[str, set[str]]:
    """Name -> the names whose values it gets."""
    links: defaultdict[str, set[str]] = defaultdict(set)
    functions = {f.name: f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
    classes = {c.name: c for c in ast.walk(tree) if isinstance(c, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in stored(target):
                    links[name].update(values(node.value))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for name in stored(node.target):
                links[name].update(values(node.iter))
        elif isinstance(node, ast.Call):
            name = called(node)
            if name in functions:
                for parameter in functions[name].args.args:
                    links[parameter.arg].update(n for each in _given(node) for n in values(each))
            makes = [m for m in classes[name].body if isinstance(m, ast.FunctionDef)] if name in classes else []
            for method in makes:
                for parameter in method.args.args if method.name == "__init__" else ():
                    links[parameter.arg].update(n for each in _given(node) for n in values(each))
                links[name].add(method.name)
    for name, function in functions.items():
        for node in ast.walk(function):
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                links[name].update(values(node.value))
    return links


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def stored(target: ast.AST) -> Iterator[str]:
    """What an assignment sets: of `x[rows]` it is x."""
    if isinstance(target, ast.Subscript):
        yield from stored(target.value)
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from stored(each)
    elif isinstance(target, ast.Starred):
        yield from stored(target.value)


def values(node: Any) -> Iterator[str]:
    """The names in an expression or statement, without those in indices and in calls that count."""
    if isinstance(node, ast.Subscript):
        yield from values(node.value)
        return
    if isinstance(node, ast.Call) and called(node) in _COUNTS:
        return
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        yield from values(child)
