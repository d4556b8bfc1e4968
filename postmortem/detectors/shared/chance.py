"""Whether a run ends at chance: its loss at the logarithm of the number of classes, its accuracy at one in so many."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core.roles import plain_name
from postmortem.core.stats import centred_median, median, quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.series import Series
    from postmortem.core.view import View

_POINTS = 4
"""Points at chance, of the loss and of the accuracy."""
_NEAR_LOSS, _NEAR_SCORE = 0.01, 0.25
"""How far from ln(k) and from 1/k their levels may be, as a fraction."""
_LEARNED = 0.9
"""A loss below this share of ln(k) has learned something."""
_MOST = 1000


class Lost(NamedTuple):
    """A classifier that was best at point `best` of `loss`, and guesses among `classes` classes since point `at`."""

    loss: Series
    score: Series
    classes: int
    best: int
    at: int


def lost_to_chance(view: View) -> Lost | None:
    """What is lost where a training that had learned ends at chance, by two witnesses that agree on the classes.

    The loss of the training stays at ln(k), an accuracy at 1/k, both to the end of the log, and both were clearly
    better before. A new task does not look like that: its loss falls, or it is above ln(k) at first.
    """
    if "lost to chance" not in view.cache:
        losses, scores = (
            [s.finite for s in view.of(*roles) if len(s.finite) >= 2 * _POINTS]
            for roles in (("loss",), ("accuracy", "val_accuracy"))
        )
        pairs = (_lost(loss, score) for loss in losses for score in scores)
        view.cache["lost to chance"] = next((lost for lost in pairs if lost is not None), None)
    found: Lost | None = view.cache["lost to chance"]
    return found


def excuses(view: View, step: int) -> bool:
    """Whether an announced change at `step` may explain what a run loses there: not if it guesses from then on."""
    lost = lost_to_chance(view)
    return lost is None or not lost.loss.step[lost.best] < step <= lost.loss.step[lost.at]


def _lost(loss: Series, score: Series) -> Lost | None:
    n = len(loss)
    end = median(loss.value[-max(_POINTS, n // 10) :])
    k = round(math.exp(end)) if 0 < end < math.log(_MOST) else 0
    if k < 2 or abs(end / math.log(k) - 1) > _NEAR_LOSS:
        return None
    smooth = centred_median(loss.value, 3)
    away = np.flatnonzero(np.abs(smooth / math.log(k) - 1) > 2 * _NEAR_LOSS)
    learned = np.flatnonzero(smooth < _LEARNED * math.log(k))
    if not len(away) or len(learned) < 2:
        return None
    at = int(away[-1]) + 1
    rest = loss.value[at:]
    if len(rest) < max(_POINTS, n // 10) or np.ptp(np.quantile(rest, [0.1, 0.9])) > _NEAR_LOSS * math.log(k):
        return None
    share = score.value / (100.0 if score.value.max() > 1 else 1.0) * k
    since = share[score.step >= loss.step[at]]
    before = share[score.step < loss.step[at]]
    guesses = len(since) >= _POINTS and abs(median(since) - 1) <= _NEAR_SCORE
    if not guesses or not len(before) or since.max() > 1.5 or before.max() < 1 + 2 * _NEAR_SCORE:
        return None
    return Lost(loss, score, k, int(np.argmin(smooth)), at)


_ANSWERS = re.compile(
    r"(?:^|[^a-z])(?:acc|accuracy|accu|prec@?1|top[ @-]?1|hit@?1|correct|auc|auroc|exact match|em)(?![a-z])"
)
"""Names of the share of right answers."""


def counts_answers(score: Series) -> bool:
    """Whether a score is by its name a share of right answers, which is 1/k for guesses; a precision of boxes or an
    overlap is not."""
    return _ANSWERS.search(plain_name(score.tag)) is not None


def guessed(loss: Series, score: Series, known: list[int], *, least: int, above: float = 1.15) -> int:
    """The number of classes k if an accuracy is 1/k and a loss ln(k) in every third of the run; 0 if they are not.

    The loss may be up to `above` times ln(k). Where no number is known, each gives the k of the other.
    """
    level = np.array([median(part) for part in np.array_split(loss.value, 3)])
    estimates = [round(math.exp(min(level.min() / over, 5.0))) for over in (1.0, 1.05, 1.1)]
    for k in dict.fromkeys(known or estimates):
        ratio = level / math.log(max(k, 2))
        if not (least <= k <= 100 and ratio.min() > 0.985 and ratio.max() < above):
            continue
        if any(_at_chance(score.value / whole, k) for whole in (1.0, 100.0)):
            return k
    return 0


def _at_chance(score: NDArray[np.float64], k: int) -> bool:
    """Whether an accuracy as a fraction float64[n] is 1/k in every third, and no point is far from it."""
    parts = np.array([median(part) for part in np.array_split(score, 3)]) * k
    return bool(parts.min() > 0.8 and parts.max() < 1.25 and quantile(score, 0.9) * k < 1.4)


def classes_told(view: View) -> list[tuple[int, str]]:
    """The number of classes as the log prints it, and where: no other number is then to be guessed from the values."""
    found: list[tuple[int, str]] = []
    for event in (e for e in view.events if e.kind == "classes-told"):
        where = f"line {event.line} of {event.file.rsplit('/', 1)[-1]}"
        classes, chance = event.fields.get("classes"), event.fields.get("chance")
        if isinstance(classes, int) and classes >= 2:
            found.append((classes, where))
        elif isinstance(chance, float) and chance > 0:
            k = round(1 / (chance / 100 if event.fields.get("percent") or chance >= 1 else chance))
            found += [(k, f"chance in {where}")] if k >= 2 else []
    return found
