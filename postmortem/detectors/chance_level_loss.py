from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, noise
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.frozen import flat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View

_CLASSES = ("num_classes", "n_classes", "num_labels", "classes", "vocab_size", "n_vocab", "output_dim")


@detector
class ChanceLevelLoss(BaseDetector):
    """The loss stays at what guessing gives: the logarithm of the number of classes.

    What it looks for: a training loss that ends at ln(number of classes), with the number from the configuration or
    from an accuracy of one over that number.

    Why it matters: the model answers the same for every input; nothing was learned, or it was unlearned.

    How: the median of the second half of the run within `tolerance` of ln(k). Without a known k nothing is claimed.

    Typical causes: inputs and labels that do not belong together (shuffled apart), dead units, a learning rate that
    blew the weights up early, inputs that are all zero.

    What to try: overfit one batch; show inputs with their labels; look at the histogram of the predictions.

    Known false positives: a task that cannot be learned.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Relative distance to ln(k), least number of points."""

        tolerance: float = 0.01
        points: int = 20

    code = "LOS005"
    name = "chance-level-loss"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        losses = [s.finite for s in view.of("loss") if len(s.finite) >= self.options.points]
        known = self._classes(view)
        if not losses or not known:
            raise NotChecked("no training loss with a known number of classes")
        series = losses[0]
        rest = series.value[len(series) // 2 :]
        level = float(np.median(rest))
        if not flat(rest):
            return
        for k, how in known:
            chance = math.log(k)
            if abs(level - chance) > max(
                self.options.tolerance * chance, min(0.02 * chance, 2 * noise(rest) / len(rest) ** 0.5)
            ):
                continue
            away = np.flatnonzero(
                np.abs(centred_median(series.value, 5) - chance) > max(0.05 * chance, 4 * noise(rest))
            )
            at = min(int(away[-1]) + 1, len(series) - 1) if len(away) else 0
            if at > len(series) // 2:
                continue
            yield self.found(
                series,
                at,
                f"{series.tag} stays at {number(level)}, which is ln({k}): guessing among {k} classes ({how})",
                end=len(series) - 1,
                evidence={"level": level, "classes": k, "ln_classes": chance},
            )
            return

    @staticmethod
    def _classes(view: View) -> list[tuple[int, str]]:
        found = [(int(n), f"{key} in the configuration") for key, n in view.settings(*_CLASSES) if 2 <= n < 1e7]
        for score in (s.finite for s in view.of("val_accuracy", "accuracy")):
            if len(score) >= 5:
                level = float(np.median(score.value[len(score) // 2 :]))
                level = level / 100 if level > 1 else level
                k = round(1 / level) if level > 1e-3 else 0
                if 2 <= k <= 100 and abs(level * k - 1) < 0.15:
                    found.append((k, f"{score.tag} is {number(level)}"))
        return found
