"""What several faults ask of the inputs that a model was given."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from postmortem.silent.facts import InputSeen, LoaderBegun, LoaderMade, Place
from postmortem.silent.faults._modes import trained_roots
from postmortem.silent.source import source

if TYPE_CHECKING:
    from postmortem.silent.look import Look


def training_inputs(look: Look) -> dict[int, list[InputSeen]]:
    """What trained models were given while they trained, by model, in their order."""
    roots, found = trained_roots(look), defaultdict(list)
    for seen in look.of(InputSeen):
        if seen.root in roots and seen.grad:
            found[seen.root].append(seen)
    return found


def loaders(look: Look) -> dict[int, LoaderMade]:
    """By number."""
    return {made.loader: made for made in look.of(LoaderMade)}


def read_at(look: Look, loader: int) -> Place | None:
    """The line that reads a loader from its beginning most often."""
    lines = [begun.at for begun in look.of(LoaderBegun) if begun.loader == loader and begun.at is not None]
    return max(lines, key=lines.count, default=None)


def assigned_above(at: Place) -> Place:
    """Where a name that a line uses was assigned last, in the loop or function around the line; else the line."""
    read = source(at.file)
    statement = read.statement_at(at.line)
    scope = next(iter(reversed(read.around(at.line, ast.For, ast.While))), None) or read.function_at(at.line)
    if statement is None or scope is None:
        return at
    used = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    lines = [
        node.lineno
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and node.lineno < at.line
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id in used
    ]
    return Place(at.file, max(lines), at.function) if lines else at


def chosen_at(at: Place) -> Place:
    """Where the indices were set by which the values of a line are chosen, in the function around it."""
    read = source(at.file)
    scope, statement = read.function_at(at.line) or read.tree, read.statement_at(at.line)
    if scope is None or statement is None:
        return at
    assigned: dict[str, list[ast.Assign]] = defaultdict(list)
    for node in ast.walk(scope):
        for target in node.targets if isinstance(node, ast.Assign) and node.lineno <= at.line else ():
            for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                assigned[name].append(node)  # type: ignore[arg-type]
    made = [statement, *(s for name in _names(statement) for s in assigned[name])]
    indices = {n for s in made for part in ast.walk(s) if isinstance(part, ast.Subscript) for n in _names(part.slice)}
    lines = [s.lineno for name in indices for s in assigned[name]]
    return Place(at.file, max(lines), at.function) if lines else assigned_above(at)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
