"""Where the source cuts a value off the graph: it is followed through assignments and functions of its file."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from postmortem.silent.faults._flow import links_of, stored, values
from postmortem.silent.source import Source, called, place_of, source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.silent.facts import Place

CUTS = {"detach", "detach_", "numpy", "item", "tolist", "argmax", "no_grad", "inference_mode", "tensor", "as_tensor"}
"""Calls behind which no gradient flows."""
_SUSPECTS = CUTS | {"round", "floor", "sign", "long", "int", "requires_grad_", "set_grad_enabled", "from_numpy"}
_DEPTH = 3  # functions that are followed into one another


def cuts(node: ast.AST) -> bool:
    """Whether no gradient flows through a call or attribute, by its name."""
    return called(node) in _SUSPECTS or (isinstance(node, ast.Attribute) and node.attr == "data")


def cut_of_output(at: Place) -> Place | None:
    """What cuts the output of a call in this line from the loss; None where the source does not show it.

    Copies that only a message or a metric gets are left out: the value has to go on to a backward pass or a return.
    """
    read = source(at.file)
    scope = read.function_at(at.line) or read.tree
    here = read.statements_at(at.line)
    if scope is None or not here:
        return None
    flow = _Flow(read, scope)
    carriers: set[str] = set()
    for statement in here:
        found = flow.cut_in(statement, carriers, calls=True)
        if found is not None:
            return found
        carriers |= _targets(statement)
    after = [s for s in _simple(scope) if (s.lineno, s.col_offset) > (here[-1].lineno, here[-1].col_offset)]
    return flow.cut_after(after, carriers)


class _Flow:
    """Follows values through the statements of one function."""

    def __init__(self, read: Source, scope: Any, depth: int = _DEPTH) -> None:
        self._read, self._scope, self._depth = read, scope, depth
        self._goes_on = _goes_on(read, scope)
        self._functions = {f.name: f for f in read.functions()}

    def cut_after(self, statements: Sequence[Any], carriers: set[str]) -> Place | None:
        """The first cut of one of these names in the statements."""
        for statement in statements:
            found = self.cut_in(statement, carriers)
            if found is not None:
                return found
            if carriers.intersection(values(statement)) and not isinstance(statement, ast.Expr):
                carriers |= _targets(statement)
        return None

    def cut_in(self, statement: Any, carriers: set[str], *, calls: bool = False) -> Place | None:
        """The cut of one of these names in a statement; calls: or of what a call in it gives."""

        def carries(parts: list[Any]) -> bool:
            if any(carriers.intersection(values(part)) for part in parts):
                return True
            inner = [n for part in parts for n in ast.walk(part)]
            return calls and any(isinstance(n, ast.Call) and not cuts(n) for n in inner)

        if not self._leads_on(statement):
            return None
        nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Call | ast.Attribute)]
        for node in sorted(nodes, key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0)):  # as they are computed
            function = self._functions.get(called(node)) if isinstance(node, ast.Call) else None
            if cuts(node) and carries(_operands(node)):
                return place_of(self._read.file, node)
            if function is not None and function is not self._scope and self._depth:
                given = {name for name, arg in _bound(function, node) if carries([arg])}
                inner = _Flow(self._read, function, self._depth - 1)
                found = inner.cut_after(list(_simple(function)), given) if given else None
                if found is not None:
                    return found
        return None

    def _leads_on(self, statement: Any) -> bool:
        """Whether what a statement computes goes on, as far as that is known."""
        if isinstance(statement, ast.Return):
            return True
        if isinstance(
            statement, ast.Expr
        ):  # print(x.item()) does not; x.detach_() changes x, pool(x).backward() goes on
            return called(statement.value) in _SUSPECTS | {"backward"}
        return not self._goes_on or bool(self._goes_on.intersection(_targets(statement)))


def _goes_on(read: Source, scope: Any) -> set[str]:
    """The names of a function whose values reach a backward pass or what it returns; empty where it has neither."""
    waiting: set[str] = set()
    for node in ast.walk(scope):
        if called(node) == "backward":
            waiting.update(values(node))
        elif isinstance(node, ast.Return | ast.Yield) and node.value is not None:
            waiting.update(values(node.value))
    links, found = links_of(read.tree) if read.tree is not None else {}, set[str]()
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= set(links.get(name, ())) - found
    return found


def _simple(scope: Any) -> Iterator[Any]:
    """The statements without a body of a function or file, not those of functions in it, in their order."""
    found = []
    waiting = list(scope.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            found.append(node)
        else:
            waiting += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.excepthandler)]
    return iter(sorted(found, key=lambda n: (n.lineno, n.col_offset)))


def _targets(statement: Any) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {name for target in targets if target is not None for name in stored(target)}


def _operands(node: Any) -> list[Any]:
    """What a call or attribute takes: of `x.detach()` it is x, of `from_numpy(x)` as well."""
    if isinstance(node, ast.Attribute):
        return [node.value]
    receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return [*receiver, *node.args, *(word.value for word in node.keywords)]


def _bound(function: Any, call: Any) -> Iterator[tuple[str, Any]]:
    """The parameters of a function with what a call gives for them."""
    names = [p.arg for p in function.args.args]
    yield from zip(names[1:] if names[:1] == ["self"] else names, call.args, strict=False)
    yield from ((word.arg, word.value) for word in call.keywords if word.arg)
