"""Writes a tried change of one line as a unified diff of the user's source."""

from __future__ import annotations

import ast
import itertools
import linecache
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from postmortem.replay.trace.singular import DIVISION, DOMAINS, RECIPROCAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from postmortem.replay.trace.places import Span


@dataclass(frozen=True, slots=True)
class Guard:
    """What keeps a divisor away from zero.

    kind: "clamped" where it has one sign; "signed" where it takes both, and keeps its own; "number" of a plain one;
    "complex"; "mixed" where it is now this and now that, which no single expression guards. whole: an integer tensor,
    kept at least 1. changed: something was near zero.
    """

    kind: Literal["clamped", "signed", "number", "complex", "mixed"] = "clamped"
    whole: bool = False
    changed: bool = False

    def joined(self, other: Guard) -> Guard:
        """That of an expression which was evaluated twice."""
        changed = self.changed or other.changed
        if (self.kind, self.whole) == (other.kind, other.whole):
            return replace(self, changed=changed)
        signs = {self.kind, other.kind} == {"clamped", "signed"} and self.whole == other.whole
        return Guard("signed" if signs else "mixed", self.whole, changed)

    @property
    def reads_again(self) -> bool:
        """Whether its code needs the divisor a second time."""
        return self.kind in ("signed", "complex")

    def code(self, name: str, eps: float) -> str:
        """What is written behind the divisor; `name`: how it can be read again."""
        if self.kind == "number":
            return f" or {eps:g}"
        if self.kind == "complex":
            return f".where({name}.abs() >= {eps:g}, {eps:g})"
        if self.whole:
            return f".where({name} != 0, 1)" if self.kind == "signed" else ".clamp(min=1)"
        kept = f".clamp(min={eps:g})"
        return f".abs(){kept}.copysign({name})" if self.kind == "signed" else kept


def suggested_line(file: str, guards: Mapping[Span | None, Guard], line: int, op: str, eps: float) -> str | None:
    """A unified diff that puts the guards to the expressions at their spans.

    op: the singular operator; of other operators than divisions the argument is clamped. None where an expression
    cannot be parsed, does not call `op`, or cannot be guarded by one expression.
    """
    source = linecache.getlines(file)
    insertions: set[_Insertion] = set()
    names = _new_names(source)
    for span, guard in guards.items():
        more = _insertions(source, span, line, op, eps, guard, names) if guard.kind != "mixed" else None
        if more is None:
            return None
        insertions.update(more)
    rows: dict[int, bytes] = {}
    # from the end of a row, so that the columns before stay valid
    for number, column, _, text in sorted(insertions, key=lambda i: (i[0], -i[1], i[2])):
        raw = rows.get(number) or source[number - 1].rstrip("\n").encode()
        rows[number] = raw[:column] + text.encode() + raw[column:]
    return _diff(file, {n: (source[n - 1].rstrip("\n"), rows[n].decode()) for n in sorted(rows)})


_Insertion = tuple[int, int, int, str]
"""Line, column, order among insertions at the same place (nested expressions may end together), text."""


def _insertions(
    source: list[str], span: Span | None, line: int, op: str, eps: float, guard: Guard, names: Iterator[str]
) -> list[_Insertion] | None:
    """The insertions that change the expression at `span`."""
    operands = (_singular_part(node, op) for node in _nodes(source, span, line))
    operand = next((found for found in operands if found is not None), None)
    if operand is None or operand.lineno != operand.end_lineno:
        return None
    raw = source[operand.lineno - 1].rstrip("\n").encode()
    row, start, end = operand.lineno, operand.col_offset, operand.end_col_offset or operand.col_offset
    plain = isinstance(operand, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    in_brackets = not plain and re.search(rb"(^|[^\w)\]])\($", raw[:start]) is not None and raw[end : end + 1] == b")"
    opening, closing = (row, start, end - start), (row, end, start - end)
    if op not in DOMAINS and guard.kind == "number":
        code = guard.code("", eps)
        return [(*closing, code)] if in_brackets else [(*opening, "("), (*closing, f"{code})")]
    name, named = raw[start:end].decode(), ""
    simple = plain and not any(isinstance(node, ast.Call) for node in ast.walk(operand))
    if op not in DOMAINS and guard.reads_again and not simple:
        name, plain = next(names), False  # evaluated once: it may draw random numbers, or hold another guard
        named = f"{name} := "
    clamp = DOMAINS[op].clamp_code(eps) if op in DOMAINS else guard.code(name, eps)
    if in_brackets:
        return [*([(*opening, named)] if named else []), (row, end + 1, start - end - 2, clamp)]
    return [(*closing, clamp)] if plain else [(*opening, f"({named}"), (*closing, f"){clamp}")]


def _new_names(source: list[str]) -> Iterator[str]:
    """Names that the source has nowhere."""
    text = "".join(source)
    return (name for name in (f"divisor{n or ''}" for n in itertools.count()) if name not in text)


def contiguous_line(file: str, span: Span | None) -> str | None:
    """A unified diff that makes the first argument of the call at `span` contiguous; None where there is no call."""
    source = linecache.getlines(file)
    nodes = _nodes(source, span, span[0]) if span else []
    called = next((n for n in nodes if isinstance(n, ast.Call) and _span(n) == span), None)
    if called is None or not called.args or called.args[0].lineno != called.args[0].end_lineno:
        return None
    given = called.args[0]
    row = source[given.lineno - 1].rstrip("\n")
    raw, start, end = row.encode(), given.col_offset, given.end_col_offset or given.col_offset
    text = raw[start:end].decode()
    kept = text if isinstance(given, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({text})"
    return _diff(file, {given.lineno: (row, raw[:start].decode() + kept + ".contiguous()" + raw[end:].decode())})


def view_line(file: str, span: Span | None, shape: Sequence[int]) -> str | None:
    """A unified diff that puts a view of `shape` in place of the permutation at `span`; None where that is no method
    call on one line."""
    source = linecache.getlines(file)
    nodes = _nodes(source, span, span[0]) if span else []
    called = next((n for n in nodes if isinstance(n, (ast.Call, ast.Attribute)) and _span(n) == span), None)
    target = called.func if isinstance(called, ast.Call) else called
    if called is None or called.lineno != called.end_lineno or not isinstance(target, ast.Attribute):
        return None
    given = target.value
    if isinstance(called, ast.Call) and not _is_method(target):
        given = called.args[0] if called.args else given
    row = source[called.lineno - 1].rstrip("\n")
    raw, start, end = row.encode(), called.col_offset, called.end_col_offset or called.col_offset
    kept = raw[given.col_offset : given.end_col_offset].decode()
    new = f"{kept}.view({', '.join(map(str, shape))})"
    return _diff(file, {called.lineno: (row, raw[:start].decode() + new + raw[end:].decode())})


def _nodes(source: list[str], span: Span | None, line: int) -> list[ast.expr | ast.AugAssign]:
    """The expression or augmented assignment at `span`; where there is none, all of them on the line."""
    try:
        tree = (_piece(source, span) if span is not None else None) or ast.parse("".join(source))
    except SyntaxError:
        return []
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.expr, ast.AugAssign))]
    nodes = [n for n in nodes if n.lineno <= line <= (n.end_lineno or n.lineno)]
    return [n for n in nodes if _span(n) == span] or nodes


def _piece(source: list[str], span: Span) -> ast.Module | None:
    """The source at `span`, parsed without the rest of the file; None where it does not parse alone."""
    first, last, start, end = span
    rows = [row.encode() for row in source[first - 1 : last]]
    if not rows or rows[0][:start].rstrip().endswith(b"."):
        return None  # a method call on its own line: the object stands on the line before
    rows[-1] = rows[-1][:end]
    rows[0] = b" " * start + rows[0][start:]
    for head, tail in ((b"(\n", b"\n)"), (b"if 1:\n", b"")):  # an expression, an assignment
        try:
            tree = ast.parse(head + b"".join(rows) + tail)
        except SyntaxError:
            continue
        return ast.increment_lineno(tree, first - 2)
    return None


def _span(node: ast.expr | ast.AugAssign) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _diff(file: str, lines: dict[int, tuple[str, str]]) -> str:
    hunks = [f"@@ -{n} +{n} @@\n-{old}\n+{new}\n" for n, (old, new) in lines.items()]
    return f"--- {file}\n+++ {file}\n{''.join(hunks)}"


def _singular_part(node: ast.AST, op: str) -> ast.expr | None:
    """The argument of `op` in `node` that must stay away from the pole; None where `node` does not call `op`."""
    divides = op in ("div", "reciprocal")
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and divides and isinstance(node.op, ast.Div):
        return node.right if isinstance(node, ast.BinOp) else node.value
    if isinstance(node, ast.BinOp) and op in ("pow", "float_power") and isinstance(node.op, ast.Pow):
        return node.left
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    name = getattr(called, "attr", "") or getattr(called, "id", "")  # of ast.Attribute, of ast.Name
    if op in DOMAINS:
        known, position = name in DOMAINS[op].names, DOMAINS[op].argument
    else:
        known, position = divides and name in DIVISION | RECIPROCAL, int(name not in RECIPROCAL)
    if not known:
        return None
    arguments = [called.value, *node.args] if isinstance(called, ast.Attribute) and _is_method(called) else node.args
    return arguments[position] if position < len(arguments) else None


def _is_method(called: ast.Attribute) -> bool:
    """Whether this is a method of a tensor and no function of torch (``F.log``)."""
    return not (isinstance(called.value, ast.Name) and called.value.id in ("torch", "F", "special"))
