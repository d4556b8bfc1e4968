from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.roles import plain_name
from postmortem.core.stats import centred_median, median, noise
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.chance import classes_told, counts_answers, guessed, lost_to_chance
from postmortem.detectors.shared.frozen import digits, flat
from postmortem.detectors.shared.lr_phase import still_warms_up
from postmortem.detectors.shared.scores import AUC, OF_CLASS, OVERLAP, rises

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_CLASSES = ("num_classes", "n_classes", "num_labels", "classes", "vocab_size", "n_vocab", "output_dim")
_RECORD = later(r"(?:^|[ /])(?:best|highest|max(?:imum)?)\b")
"""Scores that can only rise, as they repeat the best one."""
_EXPLAINED = re.compile(r"(?:^|[\W_])explained_?var", re.IGNORECASE)
_LITTLE = 0.05
"""The most that a value function without use explains of the returns."""
_FEW = 5
"""Evaluations at chance that are enough where the number of classes is known."""
_FALLS = 0.9
"""A loss that ends below this share of its start falls."""

_BELOW_CHANCE = 0.75
"""The share of its level that a score of guesses is not below in the first evaluations."""


@detector
class ChanceLevelLoss(BaseDetector):
    """The loss stays at chance level, the logarithm of the number of classes, or a score stays at chance or at zero.

    What it looks for: a training loss that ends at ln(number of classes), where the number is known from the
    configuration, from what the log prints ("100 classes", "chance=1%") or from an accuracy of 1 / (number of classes);
    scores that are zero from the first evaluation to the last, whatever an accuracy says if they are of how well a
    class is found (Dice, IoU, F1, recall); scores that take only two values, which add up to 1,
    while the loss does not fall; an accuracy at 1/k in the whole run, with a loss at ln(k) or somewhat above; a
    validation accuracy at 1/k in all evaluations, with a validation loss at ln(k), or far above it while the training
    loss falls; a score of
    overlap (Dice, IoU) that stays poor in all evaluations while the training loss falls; a poor validation accuracy
    that does not change while the training loss falls; in reinforcement learning, an explained variance near zero from
    the first update to the last, with a reward that does not rise; a loss at ln(k) and an accuracy at 1/k to the end of
    the log, after both were clearly better.

    Why it matters: the model predicts the same for every input: it has learned nothing, or has lost what it had
    learned.

    How: the median of the second half of the run is within `tolerance` of ln(k). If the number of classes k is unknown,
    nothing is reported. An accuracy at 1/k in every third of the run, in per cent or as a fraction, and a loss of which
    no third is below ln(k) or more than 15 % above, are chance as well: they agree on k, which is three or more then,
    or two for an area under the ROC curve. A validation loss that starts near its level of guessing and rises is
    overfitting.

    Typical causes: inputs and labels that do not match (shuffled separately), dead units, a learning rate that made the
    weights explode early, inputs that are all zero.

    What to try: overfit one batch; view inputs together with their labels; plot a histogram of the predictions.

    A log that ends while the learning rate still warms up, early in what was planned, says nothing about the loss.

    Known false positives: a task that cannot be learned.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Relative distance to ln(k), minimum number of points; a score that is usually no more than `nothing`, and
        never more than five times that, in at least this many evaluations shows no learning; the best score of overlap
        (Dice, IoU) that is still poor."""

        tolerance: float = 0.01
        points: int = 20
        nothing: float = 0.002
        evaluations: int = 8
        poor: float = 0.15

    code = "LOS005"
    name = "chance-level-loss"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        losses = [s.finite for s in view.of("loss") if len(s.finite) >= self.options.points]
        scored = (s.finite for s in view.of("val_accuracy", "accuracy") if not _RECORD.search(plain_name(s.tag)))
        scores = [s for s in scored if len(s) >= 5]
        known = self._classes(view, scores, losses[0]) if losses else []
        critics = (s.finite for s in view.series if _EXPLAINED.search(s.tag))
        critic = next((s for s in critics if len(s) >= 2 * self.options.points), None)
        rewards = [s.finite for s in view.of("reward") if len(s.finite) >= self.options.points]
        if critic is not None and rewards and (found := self._explains_nothing(critic, rewards)):
            yield found
            return
        if not known and not scores and critic is None:
            raise NotChecked("no training loss with a known number of classes")
        learns = not still_warms_up(view)
        found = (self._guesses(losses[0], known) if losses and learns else None) or self._lost(view)
        found = found or (self._never_learns(view, scores) if learns else None)
        found = found or (self._held_out_at_chance(view, scores, losses) if learns else None)
        found = found or self._scores_nothing(scores, losses) or self._one_answer(scores, losses)
        found = found or self._hardly_overlaps(scores, losses) or self._same_score(scores, losses)
        if found := found or self._guesses_held_out(view, losses, scores):
            yield found

    def _guesses(self, series: Series, known: list[tuple[int, str]]) -> Finding | None:
        """A training loss that ends at ln(k)."""
        rest = series.value[len(series) // 2 :]
        level = median(rest)
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

    def _lost(self, view: View) -> Finding | None:
        """A training that had learned, and ends at chance by its loss and its accuracy."""
        lost, told = lost_to_chance(view), [k for k, _ in classes_told(view)]
        if lost is None or (told and lost.classes not in told):
            return None
        loss, k, rest = lost.loss, lost.classes, lost.loss.value[lost.at :]
        score = median(lost.score.value[lost.score.step >= loss.step[lost.at]])
        return self.found(
            loss,
            lost.at,
            f"{loss.tag} stays at {number(median(rest))} from step {loss.step[lost.at]} to the end, which is "
            f"ln({k}), and {lost.score.tag} at {number(score)}, chance among {k} classes, after {loss.tag} was "
            f"{number(loss.value[lost.best])} at step {loss.step[lost.best]}: what was learned is lost",
            end=len(loss) - 1,
            evidence={"level": median(rest), "score": score, "classes": k, "best": loss.value[lost.best]},
        )

    def _never_learns(self, view: View, scores: list[Series]) -> Finding | None:
        """An accuracy at 1/k and a loss at ln(k) or above in the whole run: each gives the k of the other.

        A rate that is too high, or labels that fit nothing, keep the loss some per cent above ln(k).
        """
        told = [k for k, _ in classes_told(view)]
        for loss in (s.finite for s in view.of("loss")):
            for score in scores:
                if min(len(loss), len(score)) < self.options.evaluations:
                    continue
                if not told and not counts_answers(score):
                    continue
                least = 2 if AUC.search(plain_name(score.tag)) else 3
                if k := guessed(loss, score, told, least=least):
                    return self._no_better(loss, score, k, known=k in told)
        return None

    def _held_out_at_chance(self, view: View, scores: list[Series], losses: list[Series]) -> Finding | None:
        """A validation accuracy at 1/k and a validation loss at ln(k) in all evaluations, whatever the training loss
        does: it falls a little where labels that fit nothing are memorised.

        A number of classes that is known needs fewer evaluations, and no agreement to the last per cent.
        """
        known = [k for k, _ in classes_told(view)] or [int(n) for _, n in view.settings(*_CLASSES) if n >= 2]
        for loss in (s.finite for s in view.of("val_loss")):
            for score in (s for s in scores if s.role == "val_accuracy"):
                if min(len(loss), len(score)) < (_FEW if known else self.options.evaluations):
                    continue
                if not known and not counts_answers(score):
                    continue
                if k := guessed(loss, score, known, least=2 if known else 3, above=1.5 if known else 1.15):
                    return self._no_better(loss, score, k, known=k in known, train=next(iter(losses), None))
        return None

    def _no_better(self, loss: Series, score: Series, k: int, *, known: bool, train: Series | None = None) -> Finding:
        level, scored = median(loss.value), median(score.value)
        chance = f"which is chance among {k} classes" if known else f"about chance if there are {k} classes"
        if AUC.search(plain_name(score.tag)):
            chance = "as for a model without information"
        result = "nothing is learned" if loss.role != "val_loss" else "nothing that is learned carries over"
        if train is not None and (fall := median(train.value[:5]) - median(train.value[-5:])) > noise(train.value):
            result += f", though {train.tag} falls by {number(fall, 2)}"
        return self.found(
            loss,
            0,
            f"{score.tag} stays at {number(scored)}, {chance}, and {loss.tag} at "
            f"{number(level)}, not below ln({k}) = {number(math.log(k))}, in the whole run: {result}",
            end=len(loss) - 1,
            evidence={"level": level, "score": scored, "classes": k, "ln_classes": math.log(k)}
            | {"rows": len(loss), "points": len(loss)},
        )

    def _scores_nothing(self, scores: list[Series], losses: list[Series]) -> Finding | None:
        """Scores that all stay near zero, from the first evaluation to the last, and do not begin to rise.

        A score of the training batches alone shows nothing while the loss still falls: the training goes on.
        """
        falls, measured = "", ", no more than by chance"
        if losses:
            first, last = (median(part) for part in (losses[0].value[:5], losses[0].value[-5:]))
            if last < _FALLS * first:
                if not any(s.role == "val_accuracy" or 5 * len(s) <= len(losses[0]) for s in scores):
                    return None
                falls = f", though {losses[0].tag} falls from {number(first)} to {number(last)}"
                measured = ", or the score is computed wrongly (labels, threshold, classes)"
        strict = [s for s in scores if OF_CLASS.search(plain_name(s.tag))]
        judged = [s for s in strict or scores if len(s) >= self.options.evaluations]
        if not judged or any(self._shows_something(s.value) for s in strict or scores):
            return None
        series, other = judged[0], next((s for s in scores if self._shows_something(s.value)), None)
        beside = ""
        if other is not None:
            beside = (
                f"; {other.tag} is {number(median(other.value[-5:]))}, as it is for a model that predicts the most "
            )
            beside += "frequent class alone where that is nearly all"
        return self.found(
            series,
            0,
            f"{series.tag} is {number(series.value.max())} at most in all {len(series)} points{falls}: "
            f"the model has learned next to nothing that this score measures{measured}{beside}",
            end=len(series) - 1,
            evidence={"best": series.value.max(), "points": len(series)},
        )

    def _one_answer(self, scores: list[Series], losses: list[Series]) -> Finding | None:
        """Scores with two values that add up to 1, while the loss does not fall: all of one class, then of the other.

        A score with few digits may have few values because there are few samples.
        """
        long = [s for s in scores if len(s) >= self.options.points]
        if not losses or not long:
            return None
        series, loss = long[0], losses[0]
        first, last = (median(part) for part in (loss.value[:5], loss.value[-5:]))
        values = distinct(series.value)
        whole = 100.0 if values[-1] > 1 else 1.0
        if last < _FALLS * first or any(len(distinct(s.value)) > 2 for s in long) or len(values) != 2:
            return None
        if min(digits(float(v)) for v in values) < 3 or abs(values.sum() - whole) > 2e-4 * whole:
            return None
        one, other = number(series.value[0]), number(float(values.sum() - series.value[0]))
        return self.found(
            series,
            0,
            f"{series.tag} is {one} or {other} in all {len(series)} points, which add up to {number(whole)}, and "
            f"{loss.tag} does not fall: so scores a model that gives the same answer for every input, of two classes",
            end=len(series) - 1,
            evidence={"values": values.tolist(), "points": len(series)},
        )

    def _hardly_overlaps(self, scores: list[Series], losses: list[Series]) -> Finding | None:
        """Scores of a segmentation that stay poor to the end and do not rise, while the training loss falls."""
        if not losses:
            return None
        first, last = (median(part) for part in (losses[0].value[:5], losses[0].value[-5:]))
        measured = [
            s
            for s in scores
            if OVERLAP.search(plain_name(s.tag)) and (s.role == "val_accuracy" or 5 * len(s) <= len(losses[0]))
        ]
        long = [s for s in measured if len(s) >= self.options.points]
        poor = all(s.value.min() >= 0 and s.value.max() <= self.options.poor for s in measured)
        if not long or not poor or last > 0.7 * first:
            return None
        series = max(long, key=len)
        if rises(series.value) or int(np.argmax(series.value)) <= len(series) // 10:
            return None  # or it falls from its start, as a loss that is named after the score
        return self.found(
            series,
            0,
            f"{series.tag} is {number(series.value.max())} at most in all {len(series)} points and does not rise, "
            f"though {losses[0].tag} falls from {number(first)} to {number(last)}: what is learned hardly carries "
            "over, or the score is computed wrongly (labels, threshold, classes)",
            end=len(series) - 1,
            evidence={"best": series.value.max(), "points": len(series), "first_loss": first, "last_loss": last},
        )

    def _same_score(self, scores: list[Series], losses: list[Series]) -> Finding | None:
        """A poor validation score that in the end is what it was in the first evaluations, though the loss falls."""
        long = [s for s in scores if s.role == "val_accuracy" and len(s) >= self.options.points]
        if not losses or not long or any(len(distinct(s.value)) < 3 for s in long):
            return None  # a score that is always the same is another finding
        whole = 100.0 if any(s.value.max() > 1 for s in scores) else 1.0
        first, last = (median(part) for part in (losses[0].value[:5], losses[0].value[-5:]))
        best = max(long, key=lambda s: s.value.max())
        early, late = (median(part) for part in (best.value[: len(best) // 5], best.value[-len(best) // 5 :]))
        if not (
            0 < best.value.max() <= self.options.poor * whole
            and 0.9 < late / max(early, 1e-9) < 1.05
            and last < 0.85 * first
        ):
            return None
        return self.found(
            best,
            0,
            f"{best.tag} is {number(early)} in the first evaluations and {number(late)} in the last of {len(best)}, "
            f"though {losses[0].tag} falls from {number(first)} to {number(last)}: the model likely predicts little "
            "more than the most frequent answer",
            end=len(best) - 1,
            evidence={"early": early, "late": late, "points": len(best), "first_loss": first, "last_loss": last},
        )

    def _explains_nothing(self, critic: Series, rewards: list[Series]) -> Finding | None:
        """An explained variance near zero from the first update to the last, with a reward that does not rise."""
        if float(np.abs(critic.value).max(initial=0.0)) > _LITTLE:
            return None
        for reward in rewards:
            x = reward.value
            rise = float(median(x[-(len(x) // 3) :]) - median(x[: max(5, len(x) // 10)]))
            if not noise(x) or rise > 2 * noise(x):
                return None
        most = float(np.abs(critic.value).max())
        return self.found(
            critic,
            0,
            f"{critic.tag} is never farther from zero than {number(most)} in {len(critic)} points, and "
            f"{rewards[0].tag} does not rise: the value function predicts no better than the mean of the returns, and "
            "the policy has not improved",
            end=len(critic) - 1,
            evidence={"largest": most, "points": len(critic)},
        )

    def _shows_something(self, x: NDArray[np.float64]) -> bool:
        """Whether a score float64[n] is above `nothing`, or on its way there: its last third above all of its first."""
        nothing, third = self.options.nothing, max(1, len(x) // 3)
        low = x.min() >= 0 and x.max() <= 5 * nothing and max(median(x), median(x[-third:])) <= nothing
        return not low or bool(x[-third:].min() > x[:third].max() and x[-third:].max() > nothing / 2)

    def _guesses_held_out(self, view: View, losses: list[Series], scores: list[Series]) -> Finding | None:
        """A validation accuracy at 1/k, with a validation loss far above ln(k), while the training loss falls."""
        held_out = next((s.finite for s in view.of("val_loss") if len(s.finite) >= 5), None)
        score = next((s for s in scores if s.role == "val_accuracy"), None)
        if held_out is None or score is None or not losses or not counts_answers(score):
            return None
        level = median(score.value) / (100 if score.value.max() > 1 else 1)  # 0.9 may be per cent
        k = round(1 / level) if level > 1e-3 else 0
        told = classes_told(view)
        if not (2 <= k <= 1000 and abs(level * k - 1) < 0.1 and flat(score.value)):
            return None
        if told and not any(abs(level * n - 1) < 0.1 for n, _ in told):
            return None
        if not told and float(score.value[:3].min()) < _BELOW_CHANCE * median(score.value):
            return None  # guessing scores no less at first: it learned that much, of more classes
        train, test = (median(s.value[-max(3, len(s) // 3) :]) for s in (losses[0], held_out))
        if not (train < 0.5 * math.log(k) and test > 2 * math.log(k)):
            return None
        if len(held_out) > 5 and median(held_out.value[:3]) < 0.5 * test:
            return None  # the model memorises: overfitting tells it, and the accuracy follows
        chance = f"which is chance among {k} classes" if told else f"about chance if there are {k} classes"
        return self.found(
            score,
            0,
            f"{score.tag} stays at {number(level)}, {chance}, and {held_out.tag} ends at "
            f"{number(test)}, while {losses[0].tag} falls to {number(train)}: nothing learned carries over",
            end=len(score) - 1,
            evidence={"level": level, "classes": k, "val_loss": test, "loss": train},
        )

    @staticmethod
    def _classes(view: View, scores: list[Series], loss: Series) -> list[tuple[int, str]]:
        found = [(int(n), f"{key} in the configuration") for key, n in view.settings(*_CLASSES) if 2 <= n < 1e7]
        if told := classes_told(view):
            return found + told
        guess = math.exp(min(median(loss.value[len(loss) // 2 :]), 16.0))
        for score in scores:
            level = median(score.value[len(score) // 2 :]) / (100 if score.value.max() > 1 else 1)
            k = round(1 / level) if level > 1e-3 else 0
            if 2 <= k <= 100 and abs(level * k - 1) < 0.15:
                found.append((k, f"{score.tag} is {number(level)}"))
            if guess > 1.5 and 0.75 < level * round(guess) < 1.35:  # a rare class count is not to be read off the score
                found.append((round(guess), f"a number estimated from the loss; {score.tag} is {number(level)}"))
        return found
