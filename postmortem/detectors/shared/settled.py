"""A loss that comes down from far above the level of guessing to that level, and no further."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.roles import plain_name
from postmortem.core.stats import median

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.series import Series

_ABOVE = 1.5
"""So many times ln(k) is a loss at first that comes down to it."""
_NEAR = 0.01
"""How far from ln(k) it may be at the end, as a fraction."""
_BETTER = 0.97
"""A loss below this share of ln(k) has learned something."""
_SHARES = (0.75, 1.35)
"""Of an accuracy by guessing, times k: the classes are not of one size."""
_STILL = 0.02
"""How far the accuracy of one answer for every input may scatter, as a fraction."""
_ACCURACY = later(r"(?:^|[ /])(?:\w*acc(?:uracy)?|top ?1)(?:$|[ /@1])")
"""Scores that are 1/k by guessing: not every score of the role is."""
_MOST = 100


class Settled(NamedTuple):
    """Point `at` of the loss is the first near ln(classes); `first` its value at the start, `level` and `scored` where
    loss and accuracy end."""

    score: Series
    classes: int
    at: int
    first: float
    level: float
    scored: float
    points: int

    def message(self, loss: Series) -> str:
        """What a finding says."""
        chance, begun = math.log(self.classes), float(loss.value[0])
        far = begun > 10 * chance
        times = f" ({number(begun / chance, 2)} times as much at the start)" if far else ""
        why = ". Inputs, weights or activations are likely much too large at the start" if far else ""
        return (
            f"{loss.tag} falls from {number(begun)} to {number(self.level)} and no further: that is "
            f"ln({self.classes}), the loss of guessing among {self.classes} classes{times}; {self.score.tag} stays at "
            f"{number(self.scored)}, as of a model that gives nearly the same answer for every input{why}"
        )

    @property
    def evidence(self) -> dict[str, float]:
        """The same as numbers."""
        found = {"level": self.level, "classes": self.classes, "ln_classes": math.log(self.classes)}
        return found | {"first": self.first, "score": self.scored, "rows": self.points, "points": self.points}


def settled(loss: Series, scores: list[Series], known: list[int], points: int) -> Settled | None:
    """Where a loss ends at ln(k), of which it never was below, and an accuracy stands still near 1/k.

    Loss and accuracy agree on k, or it is known. A training that has just come there and goes on to learn has an
    accuracy that changes.
    """
    last = loss.value[-max(points, len(loss) // 10) :]
    first = median(loss.value[:5])
    if len(loss) < 2 * points:
        return None
    for k in dict.fromkeys([*known, round(math.exp(min(median(last), 5.0)))]):
        chance = math.log(max(k, 2))
        at_chance = 2 <= k <= _MOST and abs(median(last) / chance - 1) <= _NEAR and np.ptp(last) <= 2 * _NEAR * chance
        if not at_chance or first < _ABOVE * chance or float(loss.value.min()) < _BETTER * chance:
            continue
        for score, share in _fractions(scores):
            end = share[score.step >= loss.step[-len(last)]]
            level = median(end) if len(end) else 0.0
            if len(end) < 5 or np.ptp(end) > _STILL or not _SHARES[0] < level * k < _SHARES[1]:
                continue
            away = np.flatnonzero(np.abs(loss.value / chance - 1) > 0.05)
            at = min(int(away[-1]) + 1, len(loss) - 1) if len(away) else 0
            return Settled(score, k, at, first, median(last), level, len(loss))
    return None


def _fractions(scores: list[Series]) -> Iterator[tuple[Series, NDArray[np.float64]]]:
    """Each score with its values as a fraction."""
    for score in scores:
        if _ACCURACY.search(plain_name(score.tag)):
            yield score, score.value / (100.0 if score.value.max() > 1 else 1.0)
