"""Repairs that are tried: an epsilon or clamp at the culprit itself, by intercepting the call, and the line it would make."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.step.function_mode import StepMode
from postmortem.replay.trace.places import Where, user_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType

DIVISION = {"div", "divide", "true_divide", "__truediv__", "__div__", "div_", "divide_", "true_divide_", "__itruediv__"}
RECIPROCAL = {"__rtruediv__", "__rdiv__", "reciprocal", "reciprocal_"}


@dataclass(frozen=True, slots=True)
class Domain:
    """Where a function and its derivative are finite: `low` < x < `high`; `inside` words a clamp to it.

    names: the torch functions that lead to the operator. argument: the position of x.
    """

    names: frozenset[str]
    low: float | None = 0.0
    high: float | None = None
    argument: int = 0

    def clamp(self, x: Any, eps: float) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return x.clamp(None if self.low is None else self.low + eps, None if self.high is None else self.high - eps)

    def words(self, eps: float) -> str:
        bounds = []
        if self.low is not None:
            bounds.append(f"min={eps:g}" if not self.low else f"min={self.low:g} + {eps:g}")
        if self.high is not None:
            bounds.append(f"max={self.high:g} - {eps:g}")
        return f".clamp({', '.join(bounds)})"


def _domain(*names: str, low: float | None = 0.0, high: float | None = None, argument: int = 0) -> Domain:
    return Domain(frozenset([*names, *(n + "_" for n in names)]), low, high, argument)


_POWER = Domain(frozenset({"pow", "pow_", "__pow__", "__ipow__", "float_power"}))
DOMAINS: dict[str, Domain] = {
    "sqrt": _domain("sqrt"),
    "rsqrt": _domain("rsqrt"),
    "log": _domain("log"),
    "log2": _domain("log2"),
    "log10": _domain("log10"),
    "log1p": _domain("log1p", low=-1.0),
    "pow": _POWER,
    "float_power": _POWER,
    "atanh": _domain("atanh", "arctanh", low=-1.0, high=1.0),
    "asin": _domain("asin", "arcsin", low=-1.0, high=1.0),
    "acos": _domain("acos", "arccos", low=-1.0, high=1.0),
    "erfinv": _domain("erfinv", low=-1.0, high=1.0),
    "acosh": _domain("acosh", "arccosh", low=1.0),
    "logit": _domain("logit", low=0.0, high=1.0),
    "xlogy": _domain("xlogy", argument=1),
    "lgamma": _domain("lgamma"),
    "digamma": _domain("digamma"),
}
"""Singular functions of one argument, by operator."""

NORMS: dict[str, set[str]] = {
    "layer_norm": {"layer_norm"},
    "batch_norm": {"batch_norm"},
    "group_norm": {"group_norm"},
    "instance_norm": {"instance_norm"},
    "rms_norm": {"rms_norm"},
}
"""Normalisations that take an eps."""

EPS_KEYWORD = {"normalize", "cosine_similarity", "pairwise_distance", "layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm", "logit"}


def singular(op: str | None) -> bool:
    """Whether an epsilon or a clamp could be the repair of this operator: it has a pole, or a pole in its derivative."""
    return op in DOMAINS or op in ("div", "reciprocal", "addcdiv", "norm") or op in NORMS


class AtLine(StepMode):
    """While active, the calls of operator `op` at this file and line see arguments kept `eps` away from its poles.

    That is what changing the line would do; autograd sees the changed call. `used` counts them, `spans` says where the expressions
    stand whose arguments were not what they should be: a line may call the operator several times.
    """

    def __init__(self, file: str, line: int, op: str, eps: float) -> None:
        super().__init__()
        self.file, self.line, self.eps, self.used = file, line, eps, 0
        self.signed = self.whole = False
        self._moved: dict[tuple[CodeType, int], None] = {}
        self._changes: dict[str, Callable[[list[Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]]] = {}
        """name of a torch function -> what becomes of its arguments."""
        if op in ("div", "norm") or op in NORMS:
            self._changes |= dict.fromkeys(NORMS.get(op, EPS_KEYWORD), self._keyword)
        if op in ("div", "reciprocal"):
            self._changes |= dict.fromkeys(DIVISION, lambda a, k: self._argument(a, k, 1, "other", self._away_from_zero))
            self._changes |= dict.fromkeys(RECIPROCAL, lambda a, k: self._argument(a, k, 0, "input", self._away_from_zero))
        if op == "norm":
            names = ("norm", "vector_norm", "linalg_norm", "linalg_vector_norm")
            self._changes |= dict.fromkeys(names, lambda a, k: self._argument(a, k, 0, "input", lambda x: x + self.eps))
        if (domain := DOMAINS.get(op)) is not None:
            self._changes |= dict.fromkeys(domain.names, lambda a, k: self._argument(a, k, domain.argument, "input", lambda x: domain.clamp(x, eps)))

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        change = self._changes.get(getattr(func, "__name__", ""))
        frame = _calling(self.file, self.line) if change is not None else None
        if change is None or frame is None:
            return func, args, kwargs
        self.used += 1
        others, named = change(list(args), dict(kwargs))
        if not all(
            a is b or (isinstance(a, torch.Tensor) and a.layout == torch.strided and torch.equal(a, b)) for a, b in zip(args, others, strict=True)
        ):
            self._moved[frame.f_code, frame.f_lasti] = None
        return func, others, named

    @property
    def spans(self) -> list[Span]:
        return [span for code, lasti in self._moved if (span := Where(code, self.line, lasti, None).span) is not None]

    @staticmethod
    def _argument(args: list[Any], kwargs: dict[str, Any], position: int, key: str, change: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        if position < len(args):
            args[position] = change(args[position])
        elif key in kwargs:
            kwargs[key] = change(kwargs[key])
        return args, kwargs

    def _away_from_zero(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            self.signed = True  # a plain number: it can be added to, not clamped
            return x if x else self.eps
        if x.is_complex():
            return x + self.eps
        if not x.is_floating_point():
            self.whole = True
            return torch.where(x == 0, 1, x)
        self.signed = self.signed or bool((x < 0).any())
        return torch.where(x.abs() < self.eps, torch.where(x < 0, -self.eps, self.eps).to(x.dtype), x)

    def _keyword(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        if isinstance(kwargs.get("eps"), (int, float)):
            kwargs["eps"] = max(kwargs["eps"], self.eps)
        elif args and isinstance(args[-1], float):
            args[-1] = max(args[-1], self.eps)
        return args, kwargs


class ContiguousAtLine(StepMode):
    """While active, the calls at this file and line see contiguous tensors, parameters as they are: `x.contiguous()` in the line."""

    def __init__(self, file: str, line: int) -> None:
        super().__init__()
        self.file, self.line = file, line

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        odd = any(isinstance(a, torch.Tensor) and not isinstance(a, torch.nn.Parameter) and not a.is_contiguous() for a in args)
        if odd and _calling(self.file, self.line) is not None:
            args = tuple(a.contiguous() if type(a) is torch.Tensor else a for a in args)
        return func, args, kwargs


def _calling(file: str, line: int) -> FrameType | None:
    """The frame of the user's code that makes the call that a mode sees; None where it does not stand at this line."""
    frame = user_frame(sys._getframe(2))
    return frame if frame is not None and frame.f_lineno == line and frame.f_code.co_filename == file else None


# ---- the line that this would make

Span = tuple[int, int, int, int]
"""First and last line, first and last column (in UTF-8 bytes) of an expression."""


def suggested_line(file: str, spans: Sequence[Span | None], line: int, op: str, eps: float, signed: bool) -> str | None:
    """A unified diff of the user's lines with the epsilon or clamp in each of the expressions; None where one is not understood."""
    source = linecache.getlines(file)
    insertions: set[_Insertion] = set()
    for span in spans:
        more = _insertions(source, span, line, op, eps, signed)
        if more is None:
            return None
        insertions.update(more)
    rows: dict[int, bytes] = {}
    for number, column, _, text in sorted(insertions, key=lambda i: (i[0], -i[1], i[2])):  # from the end of a row: what stands before keeps its place
        raw = rows.get(number) or source[number - 1].rstrip("\n").encode()
        rows[number] = raw[:column] + text.encode() + raw[column:]
    return _diff(file, {n: (source[n - 1].rstrip("\n"), rows[n].decode()) for n in sorted(rows)})


_Insertion = tuple[int, int, int, str]
"""Line, column, in which order several at one place are made, and the text: an expression within another one ends with it, perhaps."""


def _insertions(source: list[str], span: Span | None, line: int, op: str, eps: float, signed: bool) -> list[_Insertion] | None:
    """What repairs the expression at `span`."""
    operand = next((found for node in _nodes(source, span, line) if (found := _singular_part(node, op)) is not None), None)
    if operand is None or operand.lineno != operand.end_lineno:
        return None
    raw = source[operand.lineno - 1].rstrip("\n").encode()
    row, start, end = operand.lineno, operand.col_offset, operand.end_col_offset or operand.col_offset
    plain = isinstance(operand, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    in_brackets = not plain and re.search(rb"(^|[^\w)\]])\($", raw[:start]) is not None and raw[end : end + 1] == b")"
    opening, closing = (row, start, end - start, "("), (row, end, start - end)
    if signed and op not in DOMAINS:
        return [(*closing, f" + {eps:g}")] if in_brackets else [opening, (*closing, f" + {eps:g})")]
    words = DOMAINS[op].words(eps) if op in DOMAINS else f".clamp(min={eps:g})"
    if in_brackets:
        return [(row, end + 1, start - end - 2, words)]
    return [(*closing, words)] if plain else [opening, (*closing, f"){words}")]


def contiguous_line(file: str, span: Span | None) -> str | None:
    """A unified diff of the user's line in which the call at `span` is given its first argument as a contiguous tensor."""
    source = linecache.getlines(file)
    called = next((n for n in (_nodes(source, span, span[0]) if span else []) if isinstance(n, ast.Call) and _span(n) == span), None)
    if called is None or not called.args or called.args[0].lineno != called.args[0].end_lineno:
        return None
    given = called.args[0]
    row = source[given.lineno - 1].rstrip("\n")
    raw, start, end = row.encode(), given.col_offset, given.end_col_offset or given.col_offset
    text = raw[start:end].decode()
    kept = text if isinstance(given, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({text})"
    return _diff(file, {given.lineno: (row, raw[:start].decode() + kept + ".contiguous()" + raw[end:].decode())})


def _nodes(source: list[str], span: Span | None, line: int) -> list[ast.expr | ast.AugAssign]:
    """What stands at `span`: an expression or an augmented assignment; where none does, all of them on the line."""
    try:
        tree = (_piece(source, span) if span is not None else None) or ast.parse("".join(source))
    except SyntaxError:
        return []
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.expr, ast.AugAssign)) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    return [n for n in nodes if _span(n) == span] or nodes


def _piece(source: list[str], span: Span) -> ast.Module | None:
    """What stands at `span`, parsed without the rest of the file; None where it cannot be understood alone."""
    first, last, start, end = span
    rows = [row.encode() for row in source[first - 1 : last]]
    if not rows or rows[0][:start].rstrip().endswith(b"."):
        return None  # the call of a method on a line of its own: what it belongs to stands before it
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
    return f"--- {file}\n+++ {file}\n" + "".join(f"@@ -{n} +{n} @@\n-{old}\n+{new}\n" for n, (old, new) in lines.items())


def _singular_part(node: ast.AST, op: str) -> ast.expr | None:
    if op in ("div", "reciprocal"):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return node.right
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            return node.value
    names = DOMAINS[op].names if op in DOMAINS else DIVISION | RECIPROCAL if op in ("div", "reciprocal") else frozenset()
    if op in ("pow", "float_power") and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return node.left
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name not in names:
        return None
    method = isinstance(called, ast.Attribute) and not (isinstance(called.value, ast.Name) and called.value.id in ("torch", "F", "special"))
    position = DOMAINS[op].argument if op in DOMAINS else 0 if name in RECIPROCAL else 1
    everything = [called.value, *node.args] if method and isinstance(called, ast.Attribute) else list(node.args)
    return everything[position] if position < len(everything) else None
