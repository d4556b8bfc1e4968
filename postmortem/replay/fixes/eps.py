"""Keep the operator at fault away from its singularity."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.fixes import Advice, BaseFix, Case, Scope, finite, fix
from postmortem.replay.fixes.source_edit import suggested_line
from postmortem.replay.step.function_mode import StepMode, calling_frame
from postmortem.replay.step.overrides import Overrides
from postmortem.replay.trace.places import span_of
from postmortem.replay.trace.singular import DIVISION, DOMAINS, EPS_KEYWORD, NORMS, RECIPROCAL, singular

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View
    from postmortem.replay.trace.places import Span

    _ArgumentsChange = Callable[[list[Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]]

_SIZES = (1e-6, 1e-4)
_SAME = {"true_divide": "div", "divide": "div", "addcdiv": "div", "linalg_vector_norm": "norm"}


@fix
class Epsilon(BaseFix):
    """Keeps the operator at fault away from its singularity.

    What it changes: the inputs of the operator on the culprit's line are kept 1e-6, then 1e-4, away from the point
    where the operator or its derivative is non-finite: by a clamp, an added epsilon, or a larger eps of a norm. If the
    optimizer's own code fails, the optimizer gets an eps of at least 1e-4.

    When it is tried: if the culprit is an operator with such a point (division, logarithm, square root, power,
    norms, ...), or the optimizer.

    What a cure means: the operator is evaluated at its singularity. The changed line is suggested.
    """

    name = "eps"
    order = 100
    what = "optimizer eps at least 1e-4"
    overrides = Overrides(eps=1e-4)
    phases = ("forward", "backward", "optimizer")

    def applies(self, case: Case) -> bool:
        """Where the operator on the user's line is singular, or the fault is in the optimizer's own code."""
        if case.found.line is None:
            return case.found.phase == "optimizer"
        return case.found.file is not None and singular(_operator(case.op))

    def attempt(self, case: Case) -> Culprit:
        """Tries each size on the line; nothing is reported where the operator is not called there."""
        found, op = case.found, _operator(case.op)
        if found.file is None or found.line is None:
            return super().attempt(case)
        for eps in _SIZES:
            at = AtLine(found.file, found.line, op, eps)
            fails, _ = case.fails(at)
            met = at.met
            if met.used == 0:
                return found
            if fails is False:
                how = _description(op, found.line, f"{eps:g}")
                spans: list[Span | None] = [*met.spans] or [case.where.span if case.where else None]
                line = suggested_line(found.file, spans, found.line, op, 1 if met.whole else eps, met.signed)
                fixed = case.with_fix(self.name, cured=True, how=how, loss=case.reruns.loss)
                return replace(fixed, suggestion=line)
        how = _description(op, found.line, " and ".join(f"{eps:g}" for eps in _SIZES))
        return case.with_fix(self.name, cured=False, how=how)

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice | None:
        """The change, if it could not be written as a line of code."""
        return None if culprit.suggestion else Advice(Scope.LINE, f"{cure.how} ({finite(cure)})")


def _description(op: str, line: int, eps: str) -> str:
    """A description of the change, for the report."""
    if op in NORMS:
        return f"eps of {op} at line {line} at least {eps}"
    if op == "norm":
        return f"input of {op} at line {line} shifted by {eps}, or its eps at least that"
    if op not in DOMAINS:
        return f"divisor of {op} at line {line} at least {eps} in magnitude"
    low, high = DOMAINS[op].low, DOMAINS[op].high
    above = f"at least {eps}" if not low else f"at least {low:g} + {eps}"
    return f"input of {op} at line {line} kept {above}" + (f" and at most {high:g} - {eps}" if high is not None else "")


def _operator(op: str | None) -> str:
    """The name of `op` in the tables of singular operators."""
    name = op.strip("_") if op else ""
    return _SAME.get(name, name.removeprefix("native_"))


@dataclass(slots=True)
class Calls:
    """The calls of an operator at one line.

    used: their number. signed: a clamp will not do, as an argument takes both signs or is a plain number. whole: an
    argument is an integer tensor. spans: the expressions whose arguments were changed, as a line may call the operator
    several times.
    """

    used: int = 0
    signed: bool = False
    whole: bool = False
    spans: list[Span] = field(default_factory=list)


class AtLine(StepMode):
    """While active, the calls of operator `op` at this file and line get arguments kept `eps` away from its poles.

    That is what changing the line would do; autograd sees the changed call.
    """

    met: Calls

    def __init__(self, file: str, line: int, op: str, eps: float) -> None:
        super().__init__()
        self.file, self.line, self.eps, self.met = file, line, eps, Calls()
        self._changes: dict[str, _ArgumentsChange] = {}
        """Name of a torch function -> the change of its arguments."""
        if op in ("div", "norm") or op in NORMS:
            self._changes |= dict.fromkeys(NORMS.get(op, EPS_KEYWORD), self._keyword)
        if op in ("div", "reciprocal"):
            self._changes |= dict.fromkeys(DIVISION, _argument(1, "other", self._away_from_zero))
            self._changes |= dict.fromkeys(RECIPROCAL, _argument(0, "input", self._away_from_zero))
        if op == "norm":
            names = ("norm", "vector_norm", "linalg_norm", "linalg_vector_norm")
            self._changes |= dict.fromkeys(names, _argument(0, "input", lambda x: x + eps))
        if (domain := DOMAINS.get(op)) is not None:
            clamped = _argument(domain.argument, "input", lambda x: domain.clamp(x, eps))
            self._changes |= dict.fromkeys(domain.names, clamped)

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The call with changed arguments, where it is one of `op` at the line."""
        change = self._changes.get(getattr(func, "__name__", ""))
        frame = calling_frame(self.file, self.line) if change is not None else None
        if change is None or frame is None:
            return func, args, kwargs
        self.met.used += 1
        others, named = change(list(args), dict(kwargs))
        if not all(_unchanged(a, b) for a, b in zip(args, others, strict=True)):
            span = span_of(frame.f_code, frame.f_lasti)
            if span is not None and span not in self.met.spans:
                self.met.spans.append(span)
        return func, others, named

    def _away_from_zero(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            self.met.signed = True  # a plain number has no clamp
            return x if x else self.eps
        if x.is_complex():
            return x + self.eps
        if not x.is_floating_point():
            self.met.whole = True
            return torch.where(x == 0, 1, x)
        self.met.signed = self.met.signed or bool((x < 0).any())
        return torch.where(x.abs() < self.eps, torch.where(x < 0, -self.eps, self.eps).to(x.dtype), x)

    def _keyword(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        if isinstance(kwargs.get("eps"), (int, float)):
            kwargs["eps"] = max(kwargs["eps"], self.eps)
        elif args and isinstance(args[-1], float):
            args[-1] = max(args[-1], self.eps)
        return args, kwargs


def _argument(position: int, key: str, change: Callable[[Any], Any]) -> _ArgumentsChange:
    """A change of one argument, given by position or by keyword."""

    def changed(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        if position < len(args):
            args[position] = change(args[position])
        elif key in kwargs:
            kwargs[key] = change(kwargs[key])
        return args, kwargs

    return changed


def _unchanged(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, torch.Tensor) and a.layout == torch.strided and torch.equal(a, b))
