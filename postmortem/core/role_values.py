"""What the values of a tag tell of its role: whether they fall as a loss does, or may be learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def falls(values: NDArray[np.float64]) -> bool:
    """Whether most of what follows the beginning of a series lies below it: such a metric is minimised.

    Only the first half counts, so that a divergence at the end hides nothing.
    """
    finite = values[np.isfinite(values)]
    half = finite[: max(6, len(finite) // 2)]
    first = max(1, len(half) // 8)
    return len(half) >= 6 and bool(np.quantile(half[len(half) // 3 :], 0.75) < np.median(half[:first]))


def falls_far(values: NDArray[np.float64]) -> bool:
    """Whether a score falls as a loss does. Results of a search, best first, fall as well, but not as far."""
    finite = values[np.isfinite(values)]
    return falls(finite) and bool(np.median(finite[-3:]) < 0.8 * np.median(finite[:1]))


def may_be_rates(values: NDArray[np.float64]) -> bool:
    """Whether all finite values may be learning rates."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool((finite >= 0).all() and (finite <= 0.5).all() and finite.min() < 0.1)
