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
    from postmortem.core.series import Series
    from postmortem.core.view import View

_CLASSES = ("num_classes", "n_classes", "num_labels", "classes", "vocab_size", "n_vocab", "output_dim")
_FALLS = 0.9
"""A loss that ends below this share of its start falls."""


@detector
class ChanceLevelLoss(BaseDetector):
    """The loss stays at chance level, the logarithm of the number of classes, or a score stays at chance or at zero.

    What it looks for: a training loss that ends at ln(number of classes), where the number is known from the
    configuration or from an accuracy of 1 / (number of classes); scores that are zero from the first evaluation to the
    last; a validation accuracy at chance, with a validation loss far above ln(k), while the training loss falls.

    Why it matters: the model predicts the same for every input: it has learned nothing, or has lost what it had
    learned.

    How: the median of the second half of the run is within `tolerance` of ln(k). If the number of classes k is unknown,
    nothing is reported.

    Typical causes: inputs and labels that do not match (shuffled separately), dead units, a learning rate that made the
    weights explode early, inputs that are all zero.

    What to try: overfit one batch; view inputs together with their labels; plot a histogram of the predictions.

    Known false positives: a task that cannot be learned.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Relative distance to ln(k), minimum number of points; a score that never exceeds `nothing` in at least this
        many evaluations shows no learning."""

        tolerance: float = 0.01
        points: int = 20
        nothing: float = 0.002
        evaluations: int = 8

    code = "LOS005"
    name = "chance-level-loss"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        losses = [s.finite for s in view.of("loss") if len(s.finite) >= self.options.points]
        scores = [s.finite for s in view.of("val_accuracy", "accuracy") if len(s.finite) >= 5]
        known = self._classes(view, scores, losses[0]) if losses else []
        if not known and not scores:
            raise NotChecked("no training loss with a known number of classes")
        found = self._guesses(losses[0], known) if losses else None
        if found := found or self._scores_nothing(scores, losses) or self._guesses_held_out(view, losses, scores):
            yield found

    def _guesses(self, series: Series, known: list[tuple[int, str]]) -> Finding | None:
        """A training loss that ends at ln(k)."""
        rest = series.value[len(series) // 2 :]
        level = float(np.median(rest))
        if not flat(rest):
            return None
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
            return self.found(
                series,
                at,
                f"{series.tag} stays at {number(level)}, which is ln({k}), "
                f"the loss of guessing among {k} classes ({how})",
                end=len(series) - 1,
                evidence={"level": level, "classes": k, "ln_classes": chance},
            )
        return None

    def _scores_nothing(self, scores: list[Series], losses: list[Series]) -> Finding | None:
        """Scores that all stay at zero, from the first evaluation to the last.

        A score of the training batches alone shows nothing while the loss still falls: the training goes on.
        """
        if losses and not any(s.role == "val_accuracy" for s in scores):
            first, last = (float(np.median(part)) for part in (losses[0].value[:5], losses[0].value[-5:]))
            if last < _FALLS * first:
                return None
        long = [s for s in scores if len(s) >= self.options.evaluations]
        if not long or any(len(s) and (s.value.min() < 0 or s.value.max() > self.options.nothing) for s in scores):
            return None
        series = long[0]
        return self.found(
            series,
            0,
            f"{series.tag} is {number(series.value.max())} at most in all {len(series)} points: "
            "the model has learned next to nothing that this score measures, no more than by chance",
            end=len(series) - 1,
            evidence={"best": series.value.max(), "points": len(series)},
        )

    def _guesses_held_out(self, view: View, losses: list[Series], scores: list[Series]) -> Finding | None:
        """A validation accuracy at 1/k, with a validation loss far above ln(k), while the training loss falls."""
        held_out = next((s.finite for s in view.of("val_loss") if len(s.finite) >= 5), None)
        score = next((s for s in scores if s.role == "val_accuracy"), None)
        if held_out is None or score is None or not losses:
            return None
        level = float(np.median(score.value)) / (100 if score.value.max() > 1 else 1)  # 0.9 may be per cent
        k = round(1 / level) if level > 1e-3 else 0
        if not (2 <= k <= 1000 and abs(level * k - 1) < 0.1 and flat(score.value)):
            return None
        train, test = (float(np.median(s.value[-max(3, len(s) // 3) :])) for s in (losses[0], held_out))
        if not (train < 0.5 * math.log(k) and test > 2 * math.log(k)):
            return None
        return self.found(
            score,
            0,
            f"{score.tag} stays at {number(level)}, which is chance among {k} classes, and {held_out.tag} ends at "
            f"{number(test)}, while {losses[0].tag} falls to {number(train)}: nothing learned carries over",
            end=len(score) - 1,
            evidence={"level": level, "classes": k, "val_loss": test, "loss": train},
        )

    @staticmethod
    def _classes(view: View, scores: list[Series], loss: Series) -> list[tuple[int, str]]:
        found = [(int(n), f"{key} in the configuration") for key, n in view.settings(*_CLASSES) if 2 <= n < 1e7]
        guess = math.exp(min(float(np.median(loss.value[len(loss) // 2 :])), 16.0))
        for score in scores:
            level = float(np.median(score.value[len(score) // 2 :])) / (100 if score.value.max() > 1 else 1)
            k = round(1 / level) if level > 1e-3 else 0
            if 2 <= k <= 100 and abs(level * k - 1) < 0.15:
                found.append((k, f"{score.tag} is {number(level)}"))
            if guess > 1.5 and 0.75 < level * round(guess) < 1.35:  # a rare class count is not to be read off the score
                found.append((round(guess), f"a number estimated from the loss; {score.tag} is {number(level)}"))
        return found
