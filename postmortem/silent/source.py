"""The user's source, read to find the line of an observation; the source alone is never the reason for a fault."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST = 4 << 20  # bytes of a file that is read


class Source:
    """One file of the user's code; without a tree where it cannot be read or parsed."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: list[str] = []
        self.tree: ast.Module | None = None
        try:
            with open(file, "rb") as opened:
                content = opened.read(_LARGEST)
            self.tree = ast.parse(content)
            self.lines = content.decode(errors="replace").splitlines()
        except (OSError, SyntaxError, ValueError, RecursionError):
            self.tree = None  # removed or changed since it ran: the lines that were observed have to do

    def functions(self) -> Iterator[Any]:
        """All functions and methods."""
        return self._all(ast.FunctionDef, ast.AsyncFunctionDef)

    def classes(self, name: str) -> Iterator[Any]:
        """The classes of a name."""
        return (n for n in self._all(ast.ClassDef) if n.name == name)

    def function_at(self, line: int) -> Any:
        """The innermost function around a line."""
        around = [n for n in self.functions() if _covers(n, line)]
        return max(around, key=lambda n: n.lineno, default=None)

    def statement_at(self, line: int) -> Any:
        """The innermost statement that covers a line."""
        around = [n for n in self._all(ast.stmt) if _covers(n, line)]
        around.reverse()  # of those on the same lines, as in `with no_grad(): f(x)`, the innermost
        return min(around, key=lambda n: (n.end_lineno or n.lineno) - n.lineno, default=None)

    def statements_at(self, line: int) -> list[Any]:
        """The innermost statements that cover a line: several where it has semicolons."""
        innermost = self.statement_at(line)
        span = (innermost.end_lineno or 0) - innermost.lineno if innermost is not None else 0
        around = [n for n in self._all(ast.stmt) if _covers(n, line) and not hasattr(n, "body")]
        found = [n for n in around if (n.end_lineno or n.lineno) - n.lineno == span]
        return found or ([innermost] if innermost is not None else [])

    def around(self, line: int, *kinds: type[ast.AST]) -> list[Any]:
        """The nodes of these kinds that a line lies in, the innermost last."""
        return sorted((n for n in self._all(*kinds) if _covers(n, line)), key=lambda n: n.lineno)

    def after(self, line: int, *kinds: type[ast.AST]) -> list[Any]:
        """The nodes of these kinds that begin at a line or below it, in the function around it."""
        scope: Any = self.function_at(line) or self.tree
        nodes: list[Any] = [n for n in ast.walk(scope) if isinstance(n, kinds)] if scope is not None else []
        return sorted((n for n in nodes if (n.end_lineno or 0) >= line), key=lambda n: (n.lineno, n.col_offset))

    def _all(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        if self.tree is not None:
            yield from (n for n in ast.walk(self.tree) if isinstance(n, kinds))


@lru_cache(maxsize=64)
def source(file: str) -> Source:
    """Read once."""
    return Source(file)


def _covers(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))


def called(node: ast.AST) -> str:
    """The last name of what a call calls: `detach` of `x.detach()`; "" for what is no call."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def place_of(file: str, node: Any) -> Place:
    """Where a node begins; of a call of a method, where the method's name stands."""
    line = node.lineno
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        line = node.func.end_lineno or line
    elif isinstance(node, ast.Attribute):
        line = node.end_lineno or line
    return Place(file, line)
