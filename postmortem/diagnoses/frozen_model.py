from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import lower_rate, rate_at, warm_up
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class FrozenModel:
    """The weights may not change, or the model may predict the same for every input, although the learning rate is not
    zero. Only a possible cause: the weights of two checkpoints show it, the log does not.

    Called early-collapse if the loss rose in the first rows and stays at a higher level: then the weights did change.
    Called stale-metric if only some metrics never change, constant-predictor if the loss is at chance level, and
    no-learning if the loss is flat from the start for another reason. If a metric never changes or the loss is flat
    while the logged learning rate is at most 1e-6 from first to last, it is called learning-rate-too-low: the weights
    then move too little.
    """

    name = "frozen-model"
    also = ("stale-metric", "constant-predictor", "no-learning", "learning-rate-too-low", "early-collapse")
    priority = 74

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        still = named(findings, "loss-plateau", "chance-level-loss", "constant-metric")
        if not still or has_errors(findings):
            return None
        root = still[0]
        others = [f for f in still if f is not root]
        if (slow := _too_slow(view)) is not None and not any(f.name == "chance-level-loss" for f in still):
            name = "learning-rate-too-low"
            cause = f"{slow}: the weights may move too little to change it"
            disprove = "with a learning rate a hundred times as high, the metric does not change either"
            advice = [
                "raise the learning rate, a factor of ten at a time (1e-3 to 1e-4 is usual for Adam)",
                "check the unit and the exponent of the setting, and a schedule that scales it down",
            ]
        elif all(f.name == "constant-metric" for f in still):
            name = "stale-metric"
            cause = "Either the metric is not recomputed, or nothing in the model changes"
            disprove = "the metric changes if it is computed by hand from the checkpoint"
            advice = [
                "print the inputs of the metric at two different steps",
                "compare the weights of two checkpoints: if equal, the model is frozen; if not, the metric is stale",
            ]
        elif root.evidence.get("risen_from") is not None:
            name = "early-collapse"
            cause = "The first updates likely made the model worse, and it has learned nothing since"
            disprove = "with a tenth of the learning rate, the loss rises in the same way"
            advice = [
                f"look at what changes before step {root.step}: updates that are too large, and values that leave "
                "their range, such as a learned temperature or scale",
                lower_rate(view, rate_at(view, root.step)),
                *filter(None, [warm_up(view, root.step)]),
            ]
        else:
            guesses = any(f.name == "chance-level-loss" for f in still)
            name = "constant-predictor" if guesses else "no-learning"
            cause = (
                "A model at chance level logs such values"
                if guesses
                else "Either the weights do not change, or their changes do not help"
            )
            disprove = "the loss is already as low as the data allow"
            advice = [
                *_smaller(root),
                *["view inputs together with their labels: they may not belong to one another"] * guesses,
                "compare the weights of two checkpoints: if equal, no update reaches them; "
                "if not, the updates do not help",
                "count the parameters that require gradients and are in the optimizer",
                "overfit a single batch: if that fails, the model or the training loop has a bug",
                "check the gradient norm per layer",
            ]
        story = Story(view, root, others)
        if name == "early-collapse" or root.evidence.get("rows", 0) == root.evidence.get("points"):
            story.never_good()
        return (
            story.because(*[f.message for f in others][:3], *(_turned(view, root) if name == "early-collapse" else ()))
            .disproved_by(disprove)
            .advise(*advice)
            .diagnosis(name, f"{root.message}. {cause}.")
        )


def _turned(view: View, root: Finding) -> Iterator[str]:
    """Metrics without a known role whose sign has changed for good by the step of the root: one may be out of range."""
    for series in view.series:
        value, until = series.finite.value, int(np.searchsorted(series.finite.step, root.step or 0, side="right"))
        if series.role is not None or not 1 <= until < len(value):
            continue
        start, since = np.sign(value[0]), np.sign(value[until - 1 :])
        if start and (since == -start).all():
            at = int(np.flatnonzero(np.sign(value[:until]) != -start).max()) + 1
            yield (
                f"{series.tag} changes its sign at step {series.finite.step[at]}, from {number(float(value[0]))} at "
                f"first to {number(float(value[-1]))} in the end"
            )


def _smaller(root: Finding) -> list[str]:
    """What to do about a loss that began far above that of guessing."""
    if root.evidence.get("first", 0) <= _FAR * root.evidence.get("ln_classes", 1):
        return []
    return [
        "print the size of the inputs and of the output of each layer in the first step: normalise what is large "
        "(inputs, sums over neighbours or positions), or make the first weights smaller"
    ]


_FAR = 10
"""So many times the loss of guessing is no loss that weights of a usual size begin with."""
_TINY = 1e-6
"""A learning rate with which Adam moves a weight by about 1e-4 in a hundred steps."""


def _too_slow(view: View) -> str | None:
    """In words: a learning rate that was tiny from first to last, and what the losses did; else None."""
    rate = view.main("lr")
    known = rate.finite if rate is not None else None
    if known is None or not len(known) or not 0 < known.value.max() <= _TINY:
        return None
    said = f"{known.tag} is never above {number(float(known.value.max()), 3)}"
    held_out = view.main("val_loss")
    if held_out is None or len(held_out) < 3 or not (held_out.value[1:] < held_out.value[:-1]).all():
        return said
    first, last = (number(float(x), 7) for x in held_out.value[[0, -1]])
    return f"{said}, and {held_out.tag} falls at every evaluation, from {first} to {last}, so the weights do change"
