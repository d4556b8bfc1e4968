"""The losses of a generator and its discriminator, and where the discriminator has won for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core.stats import centred_median, median, quantile
from postmortem.detectors.shared.losses import is_of_discriminator, is_of_generator

if TYPE_CHECKING:
    from postmortem.core.series import Series
    from postmortem.core.view import View

_POINTS, _SHARE = 20, 0.25
"""The least number of points, and share of the log, for which the discriminator has to be ahead until the end."""
_NOTHING = 0.01
"""A loss of a discriminator that never errs: one that guesses has 0.25 to 2, one that is ahead 0.05 to 0.5."""
_SATURATED = 4.0
"""A loss of a generator of which the discriminator believes 2 % at most (cross-entropy: -log 0.018)."""
_FLAT = 0.02
"""Relative deviation below which a loss stands still: with squares, a generator that never deceives has exactly 1."""


class Collapse(NamedTuple):
    """A discriminator whose loss stays at nothing from its point `at` on, and the generator beside it."""

    discriminator: Series
    generator: Series
    at: int
    level: float
    """The median loss of the generator since."""


def collapse(view: View) -> Collapse | None:
    """Where the discriminator of a GAN stopped erring until the end of the log; None if it did not.

    Its loss is at nothing in nineteen of twenty points, and that of the generator is saturated or stands still.
    """
    losses = [s.finite for s in view.of("loss") if len(s.finite) >= _POINTS]
    for discriminator in (s for s in losses if is_of_discriminator(s)):
        above = np.flatnonzero(centred_median(np.abs(discriminator.value), 5) > _NOTHING)
        at = int(above[-1]) + 1 if len(above) else 0
        rest = np.abs(discriminator.value[at:])
        if len(rest) < max(_POINTS, _SHARE * len(discriminator)) or quantile(rest, 0.95) > _NOTHING:
            continue
        for generator in (s for s in losses if is_of_generator(s)):
            since = generator.value[generator.step >= discriminator.step[at]]
            if len(since) < _POINTS or float(since.min()) <= 0:
                continue
            level = median(since)
            spread = median(np.abs(since - level)) / level
            if (quantile(since, 0.1) > _SATURATED) or (spread < _FLAT and level > _NOTHING):
                return Collapse(discriminator, generator, at, level)
    return None
