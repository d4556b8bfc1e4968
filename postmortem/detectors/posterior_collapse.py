from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.roles import plain_name
from postmortem.core.stats import median
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View

_KL = re.compile(r"(?:^|[ /])(?:kl|kld|kl ?div(?:ergence)?)(?:$|[ /])")
_RECONSTRUCTION = re.compile(r"(?:^|[ /])(?:recon|rec|reconstruction|nll|mse|bce)(?:s|$|[ /])")
_OTHER = re.compile(r"weight|beta|coef|scaled|approx|policy|target|teacher|distill")
"""Of a divergence times its weight, of the weight, or of two policies or models."""


@detector
class PosteriorCollapse(BaseDetector):
    """The KL divergence of a variational autoencoder falls to almost nothing and stays there: the decoder does not use
    the latent code.

    What it looks for: a KL divergence, logged beside a reconstruction loss, that ends at less than a hundredth of its
    first values and below `nothing`.

    Why it matters: the encoder then gives the prior for every input, and the decoder the same output: samples and
    reconstructions look like the mean of the data.

    How: an encoder with random weights already has a divergence above zero, and one that is used raises it. The median
    of the last quarter of the points is below 1 % of the median of the first five, below `nothing`, and no later point
    rises above ten times that.

    Typical causes: a weight of the divergence (beta) that is too high from the first step on; a decoder that is strong
    enough without the code (autoregressive); a divergence that is summed and a reconstruction loss that is averaged
    over the elements, so that the first one outweighs the second.

    What to try: raise the weight from 0 over the first part of the training; lower it; a minimum for each dimension
    ("free bits"); log the divergence by dimension, and compare reconstructions of two different inputs.

    Known false positives: a divergence that is logged times a weight that goes to zero, under a name that does not say
    so.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Minimum number of points; the highest divergence (nats, or nats by element) that is next to none."""

        points: int = 20
        nothing: float = 1e-3

    code = "LOS010"
    name = "posterior-collapse"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        names = [(s, plain_name(s.tag)) for s in view.series]
        rebuilt = [s for s, name in names if _RECONSTRUCTION.search(name)]
        found = [s.finite for s, name in names if _KL.search(name) and not _OTHER.search(name)]
        divergences = [s for s in found if len(s) >= self.options.points]
        if not rebuilt or not divergences:
            raise NotChecked(f"no reconstruction loss and KL divergence with {self.options.points} points found")
        for series in divergences:
            value, first = series.value, median(series.value[:5])
            end = median(value[-(len(value) // 4) :])
            high = np.flatnonzero(value > 10 * max(end, 1e-12))
            if not (0 <= end < min(self.options.nothing, 0.01 * first)) or value.min() < 0:
                continue
            at = int(high[-1]) + 1 if len(high) else 0
            if at > len(value) // 2:
                continue
            yield self.found(
                series,
                at,
                f"{series.tag} falls from {number(first)} to {number(end)} and stays there: for every input the "
                "encoder gives almost the same distribution, the prior, so the decoder likely ignores the latent code",
                end=len(series) - 1,
                evidence={"first": first, "level": end, "points": len(series)},
            )
            return
