from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.adversarial import collapse
from postmortem.detectors.shared.losses import is_of_discriminator, is_of_generator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_CLAMP, _POINTS = 100.0, 20
"""What a binary cross-entropy is at most, as the logarithm is clamped at -100; points that show that it stays there."""


@detector
class GeneratorCollapse(BaseDetector):
    """The discriminator of a GAN no longer makes errors, and the generator does not recover.

    What it looks for: a discriminator loss that falls to nearly zero and stays there until the end of the log, while
    the generator loss is high or constant.

    Why it matters: a discriminator without errors gives the generator no useful gradient; images generated from then on
    do not improve, however long the training continues.

    How: the discriminator loss is below 0.01 in nineteen of twenty points of the last part of the log, at least 20
    points and a quarter of it. The generator loss in that part is above 4 in nine of ten points (the discriminator
    believes 2 % at most), or its relative deviation is below 2 %. The two losses are known by their names: D and G,
    disc and gen, discriminator and generator. A loss of either that is exactly 100 in most points and at the end is one
    as well: that is where a binary cross-entropy is clamped, of a network whose output is saturated.

    Typical causes: a discriminator that learns too fast (learning rate, several updates for each of the generator), no
    label smoothing or gradient penalty, real and generated images that are scaled differently, a generator whose output
    is constant.

    What to try: look at the images from before and after the step; lower the discriminator's learning rate, or update
    it less often; a gradient penalty or spectral normalization; check that real images go through the same scaling.

    Known false positives: the adversarial part of a larger loss that the training does not depend on.
    """

    code = "LOS009"
    name = "generator-collapse"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        yield from self._clamped(view)
        losses = view.of("loss")
        if not (any(map(is_of_discriminator, losses)) and any(map(is_of_generator, losses))):
            if any((s.value == _CLAMP).any() for s in _competing(view)):
                return  # whether it stays there was looked at
            raise NotChecked("no losses of a discriminator and a generator found")
        found = None if any(map(_at_the_clamp, _competing(view))) else collapse(view)
        if found is None:
            return
        series, at = found.discriminator, found.at
        yield self.found(
            series,
            at,
            f"{series.tag} stays below 0.01 from step {series.step[at]} to the end, and {found.generator.tag} at about "
            f"{number(found.level)}: the discriminator never errs, so the generator likely learns nothing",
            end=len(series) - 1,
            evidence={"generator": found.generator.tag, "generator_level": found.level},
        )

    def _clamped(self, view: View) -> Iterator[Finding]:
        """A loss that is 100 nearly all the time: no cross-entropy of a network that still learns."""
        clamped = [s for s in _competing(view) if _at_the_clamp(s)]
        for series in clamped:
            at = int(np.flatnonzero(series.value == _CLAMP)[0])
            rows = int((series.value == _CLAMP).sum())
            yield self.found(
                series,
                at,
                f"{series.tag} is exactly 100 in {rows} of {len(series)} points, where PyTorch and Paddle clamp a "
                "binary cross-entropy: the output of the network is saturated, and its gradient is zero",
                end=len(series) - 1,
                evidence={"rows": rows, "points": len(series)},
            )


def _competing(view: View) -> list[Series]:
    """The finite series whose names say that they are losses of a discriminator or a generator."""
    return [s.finite for s in view.series if is_of_discriminator(s) or is_of_generator(s)]


def _at_the_clamp(series: Series) -> bool:
    """Whether a loss is exactly 100 in most of its points, and at the end."""
    at = series.value == _CLAMP
    return len(at) >= _POINTS and bool(at.mean() > 0.5 and at[-1])
