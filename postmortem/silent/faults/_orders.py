"""Whether the source of a program brings rows into another order and leaves alone what belongs to them."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import Place
from postmortem.silent.faults._pairs import ORDERS, array_of, blocks
from postmortem.silent.source import called, source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PAIRS = {"zip", "TensorDataset"}
_WHOLE = {"max", "min", "sum", "len", "any", "all", "set", "Counter", "sorted", "mean"}
"""Calls whose result does not depend on the order of what they are given."""


def reordered(file: str) -> tuple[Place, str] | None:
    """The line after which rows no longer belong to those that are used with them, and what it does."""
    tree = source(file).tree
    found = (_taken_before(tree) or _one_of_two(tree)) if tree is not None else None
    return (Place(file, found[0]), found[1]) if found is not None else None


# ---- `labels = [y for _, y in batch]`, then `batch = sorted(batch)`


def _taken_before(tree: ast.Module) -> tuple[int, str] | None:
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.FunctionDef)]
    for scope in scopes:
        simple = [n for n in ast.walk(scope) if isinstance(n, ast.stmt) and not hasattr(n, "body")]
        for block in blocks(scope):
            for at, statement in enumerate(block):
                if (name := _reorders(statement)) is None:
                    continue
                before = [n for each in block[:at] for n in _taken(each, name)]
                taken = [n for n in before if not any(n in _stored(later) for later in block[at:])]
                rest = sorted((n for n in simple if n.lineno > statement.lineno), key=lambda n: n.lineno)
                for one in (n for n in taken if _used_together(rest, n, name)):
                    return statement.lineno, f"the source takes {one} from {name}, and then sorts {name}"
    return None


def _reorders(statement: ast.stmt) -> str | None:
    """The name whose rows get another order: `x = sorted(x)`, `x.sort()`, `shuffle(x)`, `x = [x[i] for i in order]`."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        if called(value) == "shuffle" and value.args:
            return ast.unparse(value.args[0])
        sorts = called(value) == "sort" and isinstance(value.func, ast.Attribute)
        return ast.unparse(value.func.value) if sorts and isinstance(value.func, ast.Attribute) else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or value is None:
        return None
    name = ast.unparse(statement.targets[0])
    if called(value) == "sorted":
        return name if isinstance(value, ast.Call) and value.args and ast.unparse(value.args[0]) == name else None
    picks = value.elt if isinstance(value, ast.ListComp) else None
    return name if isinstance(picks, ast.Subscript) and ast.unparse(picks.value) == name else None


def _taken(statement: ast.stmt, name: str) -> Iterator[str]:
    """What it assigns of the elements of an array, in their order."""
    if not isinstance(statement, ast.Assign) or called(statement.value) in _WHOLE:
        return
    over = [g.iter for n in ast.walk(statement.value) for g in getattr(n, "generators", ())]
    over += [a.value for n in ast.walk(statement.value) if called(n) == "zip" for a in _starred(n)]
    if any(ast.unparse(each) == name for each in over):
        yield from _stored(statement) - {name}


def _starred(call: Any) -> list[ast.Starred]:
    return [a for a in call.args if isinstance(a, ast.Starred)]


def _used_together(statements: list[ast.stmt], taken: str, name: str) -> bool:
    """One statement uses what was taken, and the array or what was made of it since."""
    made = {name}
    for statement in statements:
        loaded = _loaded(statement)
        if taken in loaded and made & loaded:
            return True
        if made & loaded:
            made |= _stored(statement)
    return False


# ---- `x = x[order]`, and `y`, whose rows are used with those of `x`, as it was

_Values = dict[str, list[ast.expr]]


def _one_of_two(tree: ast.Module) -> tuple[int, str] | None:
    values: _Values = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for name, value in _assigned(node):
                values[name].append(value)
    in_place = {_reorders(n) for n in ast.walk(tree) if isinstance(n, ast.stmt)}
    for group in _groups(tree):
        for name, part in group.items():
            line = _picked(values, _sources(values, name, part))
            for other in group.keys() - {name} if line else ():
                if not _follows(values, other, group[other], name, line, in_place):
                    return line, f"the source brings {name} into another order, but not {other}"
    return None


def _follows(values: _Values, other: str, part: ast.expr, name: str, line: int, in_place: set[str | None]) -> bool:
    """Whether an array is brought into an order as well, or is made of one that was; one that was assigned before that
    line is what it was."""
    if other.isidentifier() and max((value.lineno for value in values.get(other, ())), default=line) < line:
        values = {n: [v for v in given if v.lineno < line] for n, given in values.items()}
    behind = _behind(values, [part, *values.get(other, ())]) | {other}
    ordered = any(called(n) in ORDERS for v in _sources(values, other, part) for n in ast.walk(v))
    return (
        ordered or (name in behind and bool(_picked(values, values.get(name, [])))) or not in_place.isdisjoint(behind)
    )


def _sources(values: _Values, name: str, part: ast.expr) -> list[ast.expr]:
    """What is assigned to the names that an array comes from."""
    return [part, *(v for n in _behind(values, [part, *values.get(name, ())]) | {name} for v in values.get(n, ()))]


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs: Iterable[Any] = zip(target.elts, node.value.elts, strict=False)
        elif isinstance(target, ast.Tuple):
            pairs = ((each, node.value) for each in target.elts)
        else:
            pairs = ((target, node.value),)
        yield from ((ast.unparse(name), value) for name, value in pairs)


def _behind(values: _Values, given: list[ast.expr]) -> set[str]:
    """The names that values come from, indices among them."""
    found, waiting = set[str](), {n for value in given for n in _loaded(value)}
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting |= {n for value in values.get(one, ()) for n in _loaded(value)} - found
    return found


def _picked(values: _Values, given: list[ast.expr]) -> int:
    """The last line of values that chooses rows by an order; 0: none does."""
    lines = [0]
    for value in given:
        indices = [n.slice for n in ast.walk(value) if isinstance(n, ast.Subscript)]
        made = [v for index in indices for n in _loaded(index) for v in values.get(n, ())]
        if any(called(n) in ORDERS for each in (*indices, *made) for n in ast.walk(each)):
            lines.append(value.lineno)
    return max(lines)


def _groups(tree: ast.Module) -> Iterator[dict[str, ast.expr]]:
    """Arrays whose rows are used together: in one expression with one index, zipped, returned as a tuple, or given to a
    function or class that does so with its parameters."""
    yield from _of_rows(tree)
    for scope in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)):
        maker = next((f for f in scope.body if getattr(f, "name", "") == "__init__"), scope)
        given = [a.arg for a in maker.args.args if a.arg != "self"] if isinstance(maker, ast.FunctionDef) else []
        if isinstance(scope, ast.FunctionDef):
            yield from (
                {e.id: part for e, part in zip(n.value.elts, n.value.elts, strict=True) if isinstance(e, ast.Name)}
                for n in ast.walk(scope)
                if isinstance(n, ast.Return) and isinstance(n.value, ast.Tuple)
            )
        kept = {name: ast.unparse(v) for n in ast.walk(maker) if isinstance(n, ast.Assign) for name, v in _assigned(n)}
        groups = [{kept.get(name, name) for name in group} & set(given) for group in _of_rows(scope)]
        for parameters in (group for group in groups if len(group) > 1):
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and called(n) == scope.name):
                passed = dict(zip(given, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
                yield {array_of(passed[p]): passed[p] for p in parameters if p in passed}


def _of_rows(tree: ast.AST) -> Iterator[dict[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in _PAIRS:
            yield {array_of(part): part for part in node.args}
        parts = getattr(node, "elts", None) or getattr(node, "args", None) or getattr(node, "values", None)
        by_index: dict[str, dict[str, ast.expr]] = defaultdict(dict)
        for part in parts if isinstance(parts, list) else ():
            for one in ast.walk(part):
                if isinstance(one, ast.Subscript) and _loaded(one.slice):
                    by_index[ast.unparse(one.slice)][ast.unparse(one.value)] = one.value
        yield from by_index.values()


def _loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
