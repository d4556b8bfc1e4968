from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import lower_rate, rate_at
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, faults, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_SOON = 5
"""Rows of the loss from the fault to the level of guessing."""
_ABOVE = 1.5
"""The ratio to ln(k) up to which a loss did not go higher than by guessing: a loss that explodes goes far above."""


@diagnosis
class ConstantOutput:
    """The model likely gives the same output for every input from some step on: the loss goes to the level of guessing,
    ln(number of classes), within a few rows, never goes above it, and stays there to the end.

    Dead units do that (a ReLU whose input is below zero for every sample passes no gradient, so it does not come back),
    and so do inputs that are all zero from that step on, and weights that were reset; the log does not show which of
    them it was. A loss that diverges goes above that level, and so does one of labels that no longer belong to the
    inputs: these are other diagnoses.
    """

    name = "constant-output"
    priority = 39  # before "bad-batch", as the gradient norm may leap in that step, and before "diverged"

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        grave = faults(view, findings)
        # the gradient of what still learns, such as the last bias, may leap with the loss: its consequence
        root = next((f for f in grave if f.step == grave[0].step and f.name in ("divergence", "loss-spike")), None)
        if root is None or root.step is None:
            return None
        guesses = next((f for f in named(findings, "chance-level-loss") if f.tag == root.tag), None)
        if guesses is None or named(findings, *NONFINITE) or not _at_once(view, root, guesses):
            return None
        rate, batch = rate_at(view, root.step), f"step {root.step}"
        return (
            Story(view, root, consequences(findings, root))
            .because(guesses.message)
            .disproved_by("the outputs of the model for two different inputs after that step are different")
            .advise(
                f"print the outputs of the model for different inputs with weights from after {batch}: if they are "
                "equal, look for the first layer whose activations are 0 for every input (dead units)",
                f"check what changed right before {batch}: weights that were loaded, reset or pruned, inputs that are "
                "all zero",
                "go on with weights from before that step: dead units get no gradient, so training on does not help",
                f"if one update was too large: {lower_rate(view, rate)}",
            )
            .replay()
            .diagnosis(
                "constant-output",
                f"The model likely gives the same output for every input from {batch} on: {root.message}. The level "
                f"is that of guessing among {guesses.evidence['classes']} classes, and the loss stays near it.",
                "likely",
            )
        )


def _at_once(view: View, root: Finding, guesses: Finding) -> bool:
    """Whether the loss goes to the level of guessing within a few rows, and at no row from there on far above it."""
    series = next((s for s in view.of("loss") if s.tag == root.tag), None)
    classes = guesses.evidence.get("classes")
    if series is None or not isinstance(classes, int) or guesses.step is None or root.step is None:
        return False
    loss = series.finite
    rows = np.searchsorted(loss.step, [root.step, guesses.step])
    since = loss.value[rows[0] :]
    return bool(0 <= rows[1] - rows[0] <= _SOON and len(since) and since.max() <= _ABOVE * math.log(classes))
