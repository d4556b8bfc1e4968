"""Series that stop changing: the constant stretch at the end of a series, and whether a loss still moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.stats import median, sigma

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.series import Series

_FEW = 256
"""Values that are looked at before all others: nearly always they show that the decimals are not enough."""


def constant_from(series: Series) -> int:
    """The first point of the stretch of identical values that ends the series; its length is n where there is none."""
    x = series.value
    if not len(x):
        return 0
    if len(x) > 1 and x[-2] != x[-1]:
        return len(x) - 1
    different = np.flatnonzero(x != x[-1])
    return int(different[-1]) + 1 if len(different) else 0


def digits(value: float) -> int:
    """Significant decimal digits of a number as printed: 0.0001 has one, 2.5522 has five."""
    text = f"{abs(value):.12e}".split("e")[0].replace(".", "").rstrip("0")
    return max(1, len(text))


def decimals(x: NDArray[np.float64]) -> int:
    """Decimals that show every value float64[n] in full, 10 at most: what a text with fixed decimals has.

    >>> decimals(np.array([0.25, 0.5, 3.0]))
    2
    """
    return next((d for d in range(10) if _is_shown(x[:_FEW], d) and _is_shown(x, d)), 10)


def _is_shown(x: NDArray[np.float64], d: int) -> bool:
    """Whether d decimals show every value in full."""
    return np.allclose(np.round(x, d), x, rtol=0, atol=1e-12)


def flat(y: NDArray[np.float64]) -> bool:
    """Whether y neither rises nor falls: its two halves differ by less than three standard errors or 0.5 %."""
    half = len(y) // 2
    if half < 3:
        return False
    a, b = y[:half], y[half:]
    error = float(np.hypot(sigma(a), sigma(b))) * 1.25 / half**0.5
    return bool(abs(median(a) - median(b)) <= max(3 * error, 0.005 * abs(median(y))))
