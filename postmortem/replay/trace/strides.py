"""Strides: what a gradient's should be, and the code that gives it others."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Strides = tuple[int, ...]
Kind = Literal["size-1", "copy"]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Those of a new tensor of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if every element has a place of its own and there are no gaps between them."""
    step = 1
    for stride, size in sorted((b, a) for a, b in zip(shape, strides, strict=True) if a > 1):
        if stride != step:
            return False
        step *= size
    return True


def expected(parameter: torch.Tensor) -> Strides:
    """The strides that autograd and DDP want of its gradient: its own, or contiguous ones if it is not dense."""
    own = tuple(parameter.stride())
    return own if dense(parameter.shape, own) else contiguous_strides(parameter.shape)


def difference(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> Kind | None:
    """How two sets of strides for this shape differ; None if they are equal.

    size-1: only in dimensions of size 1, so that both describe the same memory. copy: the memory is another.
    """
    if tuple(one) == tuple(other):
        return None
    same = all(a == b or size == 1 for size, a, b in zip(shape, one, other, strict=True))
    return "size-1" if same else "copy"


def format_of(shape: Sequence[int], strides: Sequence[int]) -> str:
    """The name of a memory layout: contiguous, channels_last, channels_last_3d, dense (permuted), or not dense."""
    made = torch.empty_strided(tuple(shape), tuple(strides), device="meta")
    if made.is_contiguous():
        return "contiguous"
    known = FORMATS.get(len(shape))
    if known is not None and made.is_contiguous(memory_format=known):
        return str(known).removeprefix("torch.")
    return "permuted" if dense(shape, strides) else "not dense"


# ---- where a function makes what it returns


def returned_at(function: Callable[..., Any], index: int | None = None) -> tuple[str, int] | None:
    """(file, line) of the expression that a function returns, of its item `index` if it returns a tuple.

    A name is followed to its last assignment. None where there is no source.
    """
    made = _body(function)
    if made is None:
        return None
    file, start, body = made
    found = [n for n in _own_nodes(body) if isinstance(n, ast.Return) and n.value is not None]
    if not found:
        return file, start
    value = found[-1].value
    if isinstance(value, ast.Tuple) and index is not None and index < len(value.elts):
        value = value.elts[index]
    if isinstance(value, ast.Name):
        name = value.id
        value = next((n.value for n in reversed(_assignments(body)) if _assigns(n, name)), value)
    assert value is not None
    return file, start + value.lineno - 1


def assigned_at(function: Callable[..., Any], attribute: str) -> tuple[str, int] | None:
    """(file, line) of the last assignment to `.attribute` in a function, else of its first line."""
    made = _body(function)
    if made is None:
        return None
    file, start, body = made
    lines = [
        n.lineno
        for n in _assignments(body)
        for target in n.targets
        if isinstance(target, ast.Attribute) and target.attr == attribute
    ]
    return file, start + (lines[-1] if lines else 1) - 1


def _body(function: Callable[..., Any]) -> tuple[str, int, ast.AST] | None:
    function = inspect.unwrap(function)
    try:
        lines, start = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # no source, or a lambda in the middle of a statement
        code = getattr(function, "__code__", None)
        return None if code is None else (code.co_filename, code.co_firstlineno, ast.Module([], []))
    if not tree.body or file is None:
        return None
    return file, start, tree.body[0]


def _own_nodes(body: ast.AST) -> list[ast.stmt | ast.expr]:
    """The nodes of a function, in the order of the source, without those of functions inside it."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(body))
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        found.append(node)
        todo += ast.iter_child_nodes(node)
    placed = [n for n in found if isinstance(n, (ast.stmt, ast.expr))]
    return sorted(placed, key=lambda n: (n.lineno, n.col_offset))


def _assignments(body: ast.AST) -> list[ast.Assign]:
    return [n for n in _own_nodes(body) if isinstance(n, ast.Assign)]


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
