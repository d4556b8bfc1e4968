"""Operators with a pole, or a pole in their derivative: their names and where they are finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

DIVISION = {"div", "divide", "true_divide", "__truediv__", "__div__", "div_", "divide_", "true_divide_", "__itruediv__"}
RECIPROCAL = {"__rtruediv__", "__rdiv__", "reciprocal", "reciprocal_"}


@dataclass(frozen=True, slots=True)
class Domain:
    """Where a function and its derivative are finite: `low` < x < `high`.

    names: the torch functions that call the operator. argument: the position of x.
    """

    names: frozenset[str]
    low: float | None = 0.0
    high: float | None = None
    argument: int = 0

    def clamp(self, x: Any, eps: float) -> Any:
        """`x` kept `eps` away from the bounds; unchanged where it is no floating-point tensor."""
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return x.clamp(None if self.low is None else self.low + eps, None if self.high is None else self.high - eps)

    def away(self, x: torch.Tensor) -> torch.Tensor:
        """How far each value lies inside the bounds; at most 0 at them and beyond."""
        sides = [x - self.low] if self.low is not None else []
        sides += [self.high - x] if self.high is not None else []
        return torch.stack(sides).amin(0)

    def clamp_code(self, eps: float) -> str:
        """The call of `clamp` that keeps a tensor `eps` away from the bounds, as source code."""
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
"""Singular functions, by operator."""

NORMS: dict[str, set[str]] = {
    "layer_norm": {"layer_norm"},
    "batch_norm": {"batch_norm"},
    "group_norm": {"group_norm"},
    "instance_norm": {"instance_norm"},
    "rms_norm": {"rms_norm"},
}
"""Normalisations, which take an eps: operator -> torch functions that call it."""

EPS_KEYWORD = {"normalize", "cosine_similarity", "pairwise_distance", "logit", *NORMS}
"""Functions that take an eps."""


def singular(op: str | None) -> bool:
    """Whether `op` or its derivative has a pole, so that an epsilon or a clamp could cure it."""
    return op in DOMAINS or op in ("div", "reciprocal", "addcdiv", "norm") or op in NORMS
