"""Excursions: where a series leaves its own recent level, and how far they stand out from the next ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.stats import SIGMA, groups, sigma, trailing_median

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.series import Series
    from postmortem.core.view import View

WINDOW = 25
_PLAIN = 10.0
"""Units of noise above which an excursion is plain to see, so that there may be more of them."""
_HUNDREDFOLD, _OFTEN, _BRIEF = 100.0, 0.125, 2
"""The least ratio of jumps that return, the largest share of all points that they may be, and the most in a row."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """A finite series against the median of the 25 points before each point.

    `rise` is a difference of logarithms where all values are positive (`log`), of the values otherwise;
    `scale` is the noise expected there, in the same unit: the larger of the local and half the overall one.
    """

    series: Series
    base: NDArray[np.float64]
    rise: NDArray[np.float64]
    scale: NDArray[np.float64]
    log: bool

    @property
    def z(self) -> NDArray[np.float64]:
        """float64[n]: the rise in units of noise."""
        return self.rise / self.scale


@dataclass(frozen=True, slots=True)
class Excursion:
    """Points `first`..`last` above the level before; `peak` the highest; `rise` there; `z` in units of noise."""

    first: int
    peak: int
    last: int
    rise: float
    z: float


def residuals(view: View, series: Series) -> Residuals:
    """The residuals of a series' finite points, computed once per view."""
    key = ("residuals", series.tag, series.rank, series.source)
    if key not in view.cache:
        view.cache[key] = _residuals(series.finite)
    found: Residuals = view.cache[key]
    return found


def _residuals(series: Series) -> Residuals:
    x = series.value
    log = len(x) > 0 and float(x.min()) > 0
    y = np.log(x) if log else x / max(float(np.abs(x).max(initial=0)), 1e-300)  # scaled: no overflow in differences
    base = trailing_median(y, WINDOW)
    rise = y - base
    steps = np.zeros(len(y))
    np.abs(y[1:] - y[:-1], out=steps[1:])  # of neighbours, so that a trend does not count as noise
    local = SIGMA / 2**0.5 * trailing_median(steps, WINDOW)
    overall = sigma(rise[len(rise) // 25 :])
    scale = np.maximum(np.maximum(local, 0.5 * overall if np.isfinite(overall) else 0.0), 1e-9)
    return Residuals(series, base, rise, scale, log)


def excursions(res: Residuals, z: float, rise: float, start: int) -> list[Excursion]:
    """Independent excursions from point `start` on above `z` noises and above `rise`, highest first.

    Neighbouring points belong to one; so do two that are less than five points apart.
    """
    high = (res.rise > z * res.scale) & (res.rise > rise)
    high[:start] = False
    found = []
    for first, last in groups(high, join=5):
        peak = first + int(np.argmax(res.rise[first : last + 1]))
        found.append(Excursion(first, peak, last, float(res.rise[peak]), float(res.rise[peak] / res.scale[peak])))
    return sorted(found, key=lambda e: -e.rise)


def outstanding(
    res: Residuals, found: list[Excursion], gap: float, start: int, *, sure: float = 0.0, most: int = 3
) -> list[Excursion]:
    """The highest excursions (at most `most`, more if plain) that exceed the rest of the run by the factor `gap`.

    Those below `sure` noises have to exceed it by 1.4 `gap`. The rest is the next excursion of any size: the largest
    rise outside of the chosen ones and the points that follow them. Noise with heavy tails always has one of nearly
    the same size, and nothing stands out.
    """
    for count in range(min(2 * most, len(found)), 0, -1):
        chosen = found[:count]
        if count > most and chosen[-1].z < _PLAIN:
            continue
        away = np.ones(len(res.rise), bool)
        away[:start] = False
        for e in chosen:
            away[max(0, e.first - 2) : e.last + WINDOW // 2 + 1] = False
        rest = float(res.rise[away].max(initial=0.0))
        if chosen[-1].rise > gap * rest * (1.0 if chosen[-1].z > sure else 1.4):
            return chosen
    return []


def returning(res: Residuals, found: list[Excursion], gap: float, start: int) -> list[Excursion]:
    """All jumps to a hundredfold and more that are over at once, where there are too many for `outstanding`.

    A few samples that are far off jump each time they are drawn, and nothing lies between them and the usual values:
    the smallest jump is above twice the `gap` of every other point. The values of noise with heavy tails, and of a loss
    that has come near zero for most batches, lie between.
    """
    high = [e for e in found if res.log and e.rise > math.log(_HUNDREDFOLD) and e.z > _PLAIN]
    points = np.flatnonzero(res.rise > math.log(_HUNDREDFOLD))
    lasting = np.any(points[_BRIEF:] - points[:-_BRIEF] == _BRIEF)
    if not high or lasting or len(points) > _OFTEN * len(res.rise):
        return []
    away = np.ones(len(res.rise), bool)
    away[:start] = False
    for e in high:
        away[e.first : e.last + 1] = False
    return high if high[-1].rise > 2 * gap * float(res.rise[away].max(initial=0.0)) else []
