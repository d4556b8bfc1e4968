"""Whether a loss goes up and down with one and the same pattern again and again, as over data in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.series import Series

_MOST = 20_000
"""Points at the end of a log that are looked at."""
_SHORTEST, _TIMES = 8, 4
"""Points of a period, and periods that are seen: fewer show a pattern by chance."""
_ALIKE, _UNLIKE = 0.7, 0.4
"""Correlation of the loss with itself one period later, and the most half a period later."""
_RISE = 0.3
"""Share of the highest rise of the pattern from which on a rise counts as another one."""


class Wave(NamedTuple):
    """A pattern of `rows` points that repeats, over `steps` steps; `alike` is its correlation with itself."""

    rows: int
    steps: int
    alike: float


def wave(series: Series, rises: int) -> Wave | None:
    """The pattern that the finite values repeat, with so many separate rises at least; None if there is none.

    A pattern with one rise is also made by a printed mean that starts again in every epoch.
    """
    finite = series.finite
    value, step = finite.value[-_MOST:], finite.step[-_MOST:]
    if len(value) < 2 * _SHORTEST * _TIMES or (np.diff(step) != step[1] - step[0]).any():
        return None
    level = np.log(value) if (value > 0).all() else value
    level = level[len(level) // 5 :]  # the first fall is no wave
    rows = _period(level)
    if rows is None:
        return None
    rest = level - _mean_over(level, rows)
    rest = rest[rows // 2 : len(rest) - rows // 2]
    alike = _with_later(rest, rows)
    if alike < _ALIKE or _with_later(rest, rows // 2) > _UNLIKE:
        return None
    return Wave(rows, rows * int(step[1] - step[0]), alike) if _rises(rest, rows) >= rises else None


def _period(level: NDArray[np.float64]) -> int | None:
    """The first lag at which the autocorrelation is about as high as it ever is, apart from that of neighbours."""
    most = len(level) // _TIMES
    rest = level - _mean_over(level, most)
    rest = rest - rest.mean()
    power = np.abs(np.fft.rfft(rest, 2 * len(rest))) ** 2
    auto = np.fft.irfft(power)[: most + 1] / np.arange(len(rest), len(rest) - most - 1, -1)
    peaks = [k for k in range(_SHORTEST, most) if auto[k] >= auto[k - 1] and auto[k] >= auto[k + 1]]
    if not peaks or auto[0] <= 0:
        return None
    best = max(auto[k] for k in peaks)
    return next(k for k in peaks if auto[k] >= 0.8 * best) if best > 0.3 * auto[0] else None


def _mean_over(level: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """The mean over `rows` points around each, over fewer at the ends."""
    weight = np.ones(rows)
    return np.asarray(np.convolve(level, weight, "same") / np.convolve(np.ones(len(level)), weight, "same"))


def _with_later(rest: NDArray[np.float64], lag: int) -> float:
    a, b = rest[:-lag], rest[lag:]
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean()) / spread if spread > 0 else 0.0


def _rises(rest: NDArray[np.float64], rows: int) -> int:
    """The number of separate rises of the mean pattern."""
    pattern = rest[: len(rest) // rows * rows].reshape(-1, rows).mean(axis=0)
    step = np.diff(pattern, append=pattern[:1])
    high = step > _RISE * step.max()
    return int(np.count_nonzero(high & ~np.roll(high, 1)))
