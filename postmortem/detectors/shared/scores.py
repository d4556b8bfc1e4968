"""Kinds of scores by their names, and whether a score rises."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.core.patterns import later
from postmortem.core.stats import median, noise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OVERLAP = re.compile(r"\b(?:m(?:ean )?)?(?:dice|dsc|ious?|jaccard)\b(?! loss)")
"""Scores of a segmentation, 1 where prediction and label agree: next to nothing is bad for any task."""
OF_CLASS = later(OVERLAP.pattern + r"|\b(?:(?:macro|micro|weighted) )?f1\b|\b(?:recall|mcc|matthews)\b")
"""Scores of how well a class is found, which stay at 0 if another class is always predicted. A share of correct answers
is high then, as that class is nearly all."""
AUC = later(r"\b(?:roc )?auc|\bauroc\b")
"""Scores of two classes that are 0.5 for a model without information, whatever the shares of the classes."""


def rises(score: NDArray[np.float64]) -> bool:
    """Whether the last third of a score float64[n] is clearly above the others."""
    third = max(1, len(score) // 3)
    level = [median(part) for part in (score[:third], score[third:-third], score[-third:])]
    return level[2] > 1.3 * max(level[:2]) + 0.02


def improves(reward: NDArray[np.float64]) -> bool:
    """Whether the last third of a reward float64[n] is above its start; also where it is too smooth to judge."""
    rise = float(median(reward[-(len(reward) // 3) :]) - median(reward[: max(5, len(reward) // 10)]))
    return not noise(reward) or rise > 2 * noise(reward)
