"""What counts as calm, and which gains left their course: of numbers only, no torch."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FACTOR, _NOISE = math.log(1.25), 2.0
"""A gain has left its course if it changed by this factor and by so many times its own variation before."""
_MOST = 0.8  # of the values before a jump are none themselves
_CALM = 3  # steps that make a course at least


@dataclass(slots=True)
class Left:
    """A module whose gain left its course. step: the first at which it had. usual, gain: before, and at that step."""

    module: str
    step: int
    usual: float
    gain: float

    @property
    def factor(self) -> float:
        """How far it left, as a logarithm."""
        return abs(math.log(self.gain / self.usual)) if self.gain and self.usual else math.inf


def departed(gains: Mapping[str, Mapping[int, float]], until: int) -> list[Left]:
    """Of the gains by module and step: those that left their course up to `until` and stayed away, the first and
    furthest first. Of a module and its only part that left with it, the part."""
    found = [left for name, course in gains.items() if (left := _left(name, course, until)) is not None]
    inner = [
        f
        for f in found
        if not any(
            o.module != f.module
            and o.module.startswith(f.module + "." if f.module else "")
            and o.step <= f.step
            and o.factor > 0.8 * f.factor
            for o in found
        )
    ]
    return sorted(inner, key=lambda f: (f.step, -f.factor))


def _left(name: str, gains: Mapping[int, float], until: int) -> Left | None:
    steps = [s for s in sorted(gains) if s <= until]
    logs = [math.log(gains[s]) if 0 < gains[s] < math.inf else math.nan for s in steps]
    for i in range(_CALM, len(steps)):
        # of a slow growth the steps right before are part of it
        before = [x for x in logs[: max(_CALM, i // 2)] if math.isfinite(x)]
        if len(before) < _CALM:
            return None
        middle = statistics.median(before)
        limit = max(_FACTOR, _NOISE * max(abs(x - middle) for x in before))
        if all(not abs(x - middle) <= limit for x in logs[i:]):
            return Left(name, steps[i], math.exp(middle), gains[steps[i]])
    return None


def calm_limit(values: Sequence[float]) -> float:
    """The largest value that counts as calm after these: well above all of them."""
    middle = statistics.median(values)
    above = max(values) - middle
    return max(middle + max(3 * above, 0.35 * abs(middle)), max(values) + 1e-12)


def apart_from(values: Sequence[float], jump: float) -> list[float]:
    """Values before a jump without earlier ones of its kind: those nearer to it, by their ratio, than to the median.
    All of them where these are more than a few."""
    middle = statistics.median(values)
    if not 0 < middle < jump:
        return list(values)
    left = [x for x in values if x * x < middle * jump]
    return left if len(left) >= _MOST * len(values) else list(values)
