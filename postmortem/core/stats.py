"""Robust statistics on plain arrays, vectorised and in bounded memory.

Medians and median absolute deviations stand where means and standard deviations would, because one spike moves
the latter and not the former (P. J. Huber, Robust Statistics, 1981, ch. 5; F. R. Hampel, 1974).
"""

from __future__ import annotations

import math
from bisect import insort
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SIGMA = 1.4826
"""MAD to standard deviation, for a normal distribution."""
_CHUNK = 1 << 15
_FEW, _HANDFUL = 1000, 24


def median(x: NDArray[Any]) -> float:
    """The median; NaN for an empty array and for one with a NaN. As `np.median`, at a tenth of its cost for few values.

    >>> median(np.array([1.0, 2.0, 400.0]))
    2.0
    """
    n = len(x)
    if not n:
        return float("nan")
    mid = n // 2
    if n <= _HANDFUL:
        values = sorted(x.tolist())
        if not math.isnan(sum(values)):  # nor an infinity of either sign, which is sorted below
            return float(values[mid]) if n % 2 else (float(values[mid - 1]) + float(values[mid])) / 2
    if n < _FEW:
        ordered = np.array(x)
        ordered.sort()
    else:
        ordered = np.partition(x, (mid - 1, mid, len(x) - 1))
    if math.isnan(ordered[-1]):  # NaN is sorted to the end
        return float("nan")
    return float(ordered[mid]) if n % 2 else (float(ordered[mid - 1]) + float(ordered[mid])) / 2


def row_medians(table: Floats) -> Floats:
    """The median of each row, NaN for a row with a NaN, as `np.median` along the last axis."""
    mid = table.shape[-1] // 2
    ordered = np.sort(table, axis=-1)
    middle: Floats = ordered[..., mid] if table.shape[-1] % 2 else (ordered[..., mid - 1] + ordered[..., mid]) / 2
    return np.where(np.isnan(ordered[..., -1]), np.nan, middle)


def column_medians(table: Floats, without: int | None = None) -> Floats:
    """The median of each column, as `np.median` along the first axis; row `without` is left out.

    >>> column_medians(np.array([[1.0, 5.0], [2.0, 6.0], [9.0, 7.0]]), without=2)
    array([1.5, 5.5])
    """
    out = np.empty(table.shape[1])
    for start in range(0, len(out), _CHUNK):
        piece = table[:, start : start + _CHUNK]
        out[start : start + _CHUNK] = row_medians((piece if without is None else np.delete(piece, without, axis=0)).T)
    return out


def quantile(x: Floats, q: float) -> float:
    """The value below which a share `q` of the values lies, between two by a straight line, as `np.quantile` has it.

    >>> quantile(np.array([4.0, 1.0, 3.0, 2.0]), 0.25)
    1.75
    """
    if not len(x):
        return float("nan")
    at = q * (len(x) - 1)
    below = int(at)
    ordered = np.sort(x) if len(x) < _FEW else np.partition(x, (below, min(below + 1, len(x) - 1), len(x) - 1))
    if math.isnan(ordered[-1]):
        return float("nan")
    low, high, share = float(ordered[below]), float(ordered[min(below + 1, len(x) - 1)]), at - below
    # from the nearer of the two, so that q = 1 gives the largest value
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def sigma(x: Floats) -> float:
    """Robust standard deviation: 1.4826 times the median distance to the median; NaN for an empty array.

    One spike does not change it:

    >>> sigma(np.array([1.0, 2.0, 3.0, 4.0, 5.0])), sigma(np.array([1.0, 2.0, 3.0, 4.0, 500.0]))
    (1.4826, 1.4826)
    """
    return SIGMA * median(np.abs(x - median(x))) if len(x) else float("nan")


def noise(x: Floats) -> float:
    """Robust standard deviation of the noise around any smooth course, from the second differences of neighbours.

    For independent noise the second difference has variance 6 sigma^2 (T. Gasser et al., Biometrika 73, 1986).
    """
    return sigma(x[2:] - 2 * x[1:-1] + x[:-2]) / 6**0.5 if len(x) > 4 else sigma(np.diff(x)) / 2**0.5


def trailing_median(x: Floats, window: int = 25) -> Floats:
    """The median of the `window` values before each point, itself left out -> float64[n].

    The first points have fewer values before them; the first of all has none and gets its own value.
    Memory is O(n); time is O(n) for a given window.

    >>> trailing_median(np.array([1.0, 2.0, 9.0, 2.0, 1.0]), window=3)
    array([1. , 1. , 1.5, 2. , 2. ])
    """
    n = len(x)
    out = np.empty(n)
    if not n:
        return out
    out[: min(window, n)] = _first_medians(x[:window].tolist())
    if n > window:
        x = np.ascontiguousarray(x)
        windows = np.ndarray((n - window, window), x.dtype, x, strides=(x.itemsize, x.itemsize))
        mid = window // 2
        for start in range(0, n - window, _CHUNK):
            block = np.partition(windows[start : start + _CHUNK], mid, axis=1)
            middle = block[:, mid] if window % 2 else (block[:, mid] + block[:, :mid].max(axis=1)) / 2
            out[window + start : window + start + len(middle)] = middle
    return out


def _first_medians(values: list[float]) -> list[float]:
    """The median of all values before each of these, which are few; the first has none and gets its own value."""
    before: list[float] = []
    out = values[:1]
    for i, value in enumerate(values[:-1], 1):
        if math.isnan(value):
            return out + [math.nan] * (len(values) - i)
        insort(before, value)
        out.append(before[i // 2] if i % 2 else (before[i // 2 - 1] + before[i // 2]) / 2)
    return out


def centred_median(x: Floats, window: int) -> Floats:
    """The median of about `window` (odd) values around each point, fewer at both ends -> float64[n].

    Windows above 51 points are taken over medians of blocks, with lines between them, so that the time is O(n) for
    any window.
    """
    if window > 51 and len(x) > window:
        size = window // 25
        starts, middle = blocks(x, len(x) // size)
        level = centred_median(middle, 2 * (window // size // 2) + 1)
        return np.interp(np.arange(len(x)), starts + (size - 1) / 2, level)
    half = min(window, len(x)) // 2
    if half == 0:
        return x.copy()
    if half == 1 and len(x) > 2 and np.isfinite(x).all():
        return _of_three(x)
    ahead = trailing_median(np.concatenate([x, np.full(half + 1, x[-1])]), 2 * half + 1)
    out = ahead[half + 1 : half + 1 + len(x)].copy()
    ends = x[: 2 * half].tolist(), x[::-1][: 2 * half].tolist()
    out[:half], out[: len(x) - half - 1 : -1] = (_first_medians([*end, 0.0])[half + 1 :] for end in ends)
    return out


def _of_three(x: Floats) -> Floats:
    """`centred_median` of a window of three finite values."""
    out = np.empty(len(x))
    low, high = np.minimum(x[:-1], x[1:]), np.maximum(x[:-1], x[1:])
    out[1:-1] = np.maximum(low[:-1], np.minimum(high[:-1], x[2:]))
    out[0], out[-1] = (x[0] + x[1]) / 2, (x[-2] + x[-1]) / 2
    return out


def blocks(x: Floats, count: int) -> tuple[NDArray[np.intp], Floats]:
    """Medians of about `count` stretches of equal length -> (first index of each, median of each).

    >>> blocks(np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0]), 2)
    (array([0, 3]), array([ 2., 20.]))
    """
    size = max(1, len(x) // max(1, count))
    starts = np.arange(0, len(x) - size + 1, size)
    whole = x[: len(starts) * size].reshape(-1, size)
    return starts, row_medians(whole) if len(whole) else np.empty(0)


def groups(mask: NDArray[np.bool_], join: int = 0) -> list[tuple[int, int]]:
    """Stretches of True as (first, last) indices; stretches at most `join` False apart are one.

    >>> mask = np.array([0, 1, 1, 0, 1, 0, 0, 1], bool)
    >>> groups(mask), groups(mask, join=1)
    ([(1, 2), (4, 4), (7, 7)], [(1, 4), (7, 7)])
    """
    at = np.flatnonzero(mask)
    if not len(at):
        return []
    cut = np.flatnonzero(np.diff(at) > join + 1)
    first = at[np.concatenate([[0], cut + 1])]
    last = at[np.concatenate([cut, [len(at) - 1]])]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def step_change(x: Floats, margin: int = 3) -> tuple[int, float]:
    """The best split of x into two constant levels -> (first index of the second level, squared error removed, 0..1).

    Least squares over all splits that leave `margin` points on either side, by cumulative sums: the single
    change point of binary segmentation (A. Scott and M. Knott, Biometrics 30, 1974).

    >>> first, removed = step_change(np.array([1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0]))
    >>> first, round(removed, 6)
    (4, 1.0)
    """
    n = len(x)
    if n < 2 * margin + 1:
        return 0, 0.0
    centred = x - x.mean()
    total = float(centred @ centred)
    k = np.arange(margin, n - margin + 1)
    left = np.cumsum(centred)[k - 1]
    gain = left**2 * n / (k * (n - k))
    best = int(np.argmax(gain))
    return int(k[best]), float(gain[best] / total) if total > 0 else 0.0


def plain(value: Any) -> Any:
    """A number as a plain Python one with six significant digits, for messages and evidence.

    >>> plain(np.float64(2 / 3)), plain(np.int64(7)), plain(True)
    (0.666667, 7, True)
    """
    if isinstance(value, (bool, int, np.integer)) or value is None:
        return value if isinstance(value, bool) or value is None else int(value)
    return float(f"{float(value):.6g}")
