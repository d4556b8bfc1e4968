from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.adversarial import collapse
from postmortem.detectors.shared.losses import is_of_discriminator, is_of_generator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


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
    disc and gen, discriminator and generator.

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
        losses = view.of("loss")
        if not (any(map(is_of_discriminator, losses)) and any(map(is_of_generator, losses))):
            raise NotChecked("no losses of a discriminator and a generator found")
        found = collapse(view)
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
