"""Keep the operator at fault away from its singularity."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.model import OUTSIDE
from postmortem.replay.fixes import Advice, BaseFix, Case, Scope, finite, fix
from postmortem.replay.fixes.source_edit import Guard, suggested_line
from postmortem.replay.step.function_mode import StepMode, calling_frame
from postmortem.replay.step.overrides import Overrides
from postmortem.replay.trace.places import span_of
from postmortem.replay.trace.singular import DIVISION, DOMAINS, EPS_KEYWORD, NORMS, RECIPROCAL, singular
from postmortem.replay.trace.tensors import has_rows, local

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View
    from postmortem.replay.trace.places import Span

    _Change = Callable[[Any], Any]
    _ArgumentsChange = Callable[[list[Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]]

_SIZES = (1e-6, 1e-4)
_BEYOND = 1e-3
"""Share of the largest distance from the bounds by which values lie beyond them that no rounding puts there."""
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
        finite: list[Culprit] = []
        for eps in _SIZES:
            at = AtLine(found.file, found.line, op, eps)
            fails, _ = case.fails(at)
            if at.met.used == 0:
                return found
            if fails is False:
                finite.append(self._cured(case, at, found.file, found.line, op))
                if finite[-1].fixes[-1].good:
                    return finite[-1]
        if finite:  # none keeps the loss on its course: the one that comes nearest
            return min(finite, key=lambda c: abs(c.fixes[-1].loss or 0.0))
        how = _description(op, found.line, " and ".join(f"{eps:g}" for eps in _SIZES))
        return case.with_fix(self.name, cured=False, how=how)

    def _cured(self, case: Case, at: AtLine, file: str, line: int, op: str) -> Culprit:
        guards: dict[Span | None, Guard] = {s: g for s, g in at.met.guards.items() if g.changed}
        guards = guards or {case.where.span if case.where else None: Guard()}
        size = "1" if all(guard.whole for guard in guards.values()) else f"{at.eps:g}"
        how = _description(op, line, size) + at.met.others()
        outside = at.met.far_outside() if op in DOMAINS else ""
        note = at.met.against() if op in DOMAINS and op != "xlogy" else ""
        hides = f"{outside}: a bound here hides where they leave it" if outside else ""
        fixed = case.with_fix(self.name, cured=True, how=how, loss=case.reruns.loss, note=note or hides)
        if outside:
            fixed = replace(fixed, tensor={**fixed.tensor, OUTSIDE: outside})
        return replace(fixed, suggestion=suggested_line(file, guards, line, op, at.eps))

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

    used: their number. guards: the expressions that call it, as a line may do so several times, and what guards each.
    regular, moved, nearest: of the call in which most of them were changed, how many finite values the operator got
    that are not at its singularity, how many of those were changed, and the least distance of one from it. all, kept:
    of the values of all calls, how many there are and how many the change leaves as they are. outside: how many lie
    outside the range of the operator, farther than rounding explains, and the farthest of them.
    """

    used: int = 0
    guards: dict[Span, Guard] = field(default_factory=dict)
    regular: int | None = None
    moved: int = 0
    nearest: float = 0.0
    all: int = 0
    kept: int = 0
    outside: int = 0
    farthest: float = 0.0
    _beyond: float = 0.0

    def count(self, value: torch.Tensor, away: torch.Tensor, changed: torch.Tensor) -> None:
        """Counts the values of a call. away: their distances from the singularity."""
        beyond = away < -_BEYOND * away[away.isfinite()].abs().max() if away.isfinite().any() else away < -torch.inf
        self.outside += int(beyond.sum())
        if beyond.any() and float(away.min()) < self._beyond:
            self._beyond, self.farthest = float(away.min()), float(value.flatten()[away.argmin()])
        regular = (away > 0) & away.isfinite()
        moved = regular & changed
        n = int(moved.sum())
        self.all += changed.numel()
        self.kept += changed.numel() - int(changed.sum())
        if self.regular is None or n > self.moved:
            self.regular, self.moved = int(regular.sum()), n
            self.nearest = float(away[moved].min()) if n else 0.0

    def against(self) -> str:
        """What speaks against the change: a clamped value has no gradient."""
        if not self.all or self.kept:
            return ""
        values = "the only value is" if self.all == 1 else f"all {self.all:,} values are"
        return f"{values} then at the bound, where a clamp passes no gradient: nothing is learned through this operator"

    def far_outside(self) -> str:
        """The values outside the range of the operator, in words; empty where rounding may have put them there."""
        if not self.outside:
            return ""
        verb = "lies" if self.outside == 1 else "lie"
        share = f"{self.outside:,} of {self.all:,} values {verb}"
        return f"{share} outside the range of the operator, as far as {self.farthest:.3g}"

    def others(self) -> str:
        """What the change does to values at which the operator is regular, for the report."""
        if self.regular is None:
            return ""
        if not self.moved:
            return f", which changes no value that is not at the singularity{' or beyond it' if self.outside else ''}"
        least = f"the nearest is {self.nearest:.3g} away from it"
        return f", which also changes {self.moved:,} of the {self.regular:,} values not at the singularity ({least})"


class AtLine(StepMode):
    """While active, the calls of operator `op` at this file and line get arguments kept `eps` away from its poles.

    That is what changing the line would do; autograd sees the changed call.
    """

    met: Calls

    def __init__(self, file: str, line: int, op: str, eps: float) -> None:
        super().__init__()
        self.file, self.line, self.eps, self.met = file, line, eps, Calls()
        self._guard = Guard()
        self._changes: dict[str, _ArgumentsChange] = {}
        """Name of a torch function -> the change of its arguments."""
        if op in ("div", "norm") or op in NORMS:
            self._changes |= dict.fromkeys(NORMS.get(op, EPS_KEYWORD), self._keyword)
        if op in ("div", "reciprocal"):
            kept = self._counted(torch.abs, self._away_from_zero)
            self._changes |= dict.fromkeys(DIVISION, _argument(1, "other", kept))
            self._changes |= dict.fromkeys(RECIPROCAL, _argument(0, "input", kept))
        if op == "norm":
            names = ("norm", "vector_norm", "linalg_norm", "linalg_vector_norm")
            self._changes |= dict.fromkeys(names, _argument(0, "input", lambda x: x + eps))
        if (domain := DOMAINS.get(op)) is not None:
            kept = self._counted(domain.away, lambda x: domain.clamp(x, eps))
            self._changes |= dict.fromkeys(domain.names, _argument(domain.argument, "input", kept))

    def change(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The call with changed arguments, where it is one of `op` at the line."""
        change = self._changes.get(getattr(func, "__name__", ""))
        frame = calling_frame(self.file, self.line) if change is not None else None
        if change is None or frame is None:
            return func, args, kwargs
        self.met.used += 1
        self._guard = Guard()
        others, named = change(list(args), dict(kwargs))
        span = span_of(frame.f_code, frame.f_lasti)
        if span is not None:
            same = all(map(_unchanged, [*args, *kwargs.values()], [*others, *(named[k] for k in kwargs)]))
            guard, known = replace(self._guard, changed=not same), self.met.guards.get(span)
            self.met.guards[span] = guard if known is None else known.joined(guard)
        return func, others, named

    def _counted(self, away: Callable[[torch.Tensor], torch.Tensor], change: _Change) -> _Change:
        """`change`, and its effect on the values of a dense tensor counted."""

        def changed(x: Any) -> Any:
            kept = change(x)
            if isinstance(x, torch.Tensor) and has_rows(x) and x.numel():
                before, after = local(x.detach()), local(kept.detach())
                self.met.count(before, away(before), before != after)
            return kept

        return changed

    def _away_from_zero(self, x: Any) -> Any:
        """What the suggested line does: see `source_edit.Guard`."""
        if not isinstance(x, torch.Tensor):
            self._guard = Guard("number")
            return x or self.eps
        if x.is_complex():
            self._guard = Guard("complex")
            return torch.where(x.abs() >= self.eps, x, self.eps)
        if not x.is_floating_point():
            self._guard = Guard("signed" if bool((x < 0).any()) else "clamped", whole=True)
            return torch.where(x != 0, x, 1)
        if not bool(torch.signbit(x).any()):
            return x.clamp(min=self.eps)
        self._guard = Guard("signed")
        return x.abs().clamp(min=self.eps).copysign(x)

    def _keyword(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        if isinstance(kwargs.get("eps"), (int, float)):
            kwargs["eps"] = max(kwargs["eps"], self.eps)
        elif args and isinstance(args[-1], float):
            args[-1] = max(args[-1], self.eps)
        return args, kwargs


def _argument(position: int, key: str, change: _Change) -> _ArgumentsChange:
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
