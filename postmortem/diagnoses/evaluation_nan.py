from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, faults, has_errors, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_TRAINING = ("loss", "grad_norm", "layer_grad_norm", "lr", "loss_scale", "perplexity")


@diagnosis
class EvaluationNan:
    """Only the evaluation is non-finite: no training metric is, and the training loss is finite after it.

    The onset lies between the last finite evaluation and the first non-finite one; the log does not show more. If
    training and evaluation are both non-finite, the training is the cause, even if both are logged once per epoch.
    """

    name = "evaluation-nan"
    priority = 18

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = faults(view, findings) or ([] if has_errors(findings) else named(findings, *NONFINITE))
        bad = [f for f in found if f.name in NONFINITE]
        if not bad or found[0] is not bad[0] or not _evaluation(view, bad[0]):
            return None
        root = bad[0]
        after = next((s for s in view.of("loss") if s.tag != root.tag and _finite_after(s, root.step)), None)
        if after is None or any(role(view, f) in _TRAINING and f.tag != root.tag for f in bad):
            return None
        last = root.evidence.get("last_finite_step")
        return (
            Story(view, root, consequences(findings, root))
            .last_good(step=None if last is None else int(last))
            .because(f"{after.tag} is finite after step {root.step}", *(f.message for f in bad[1:4]))
            .disproved_by("the weights saved after the last finite evaluation hold non-finite values")
            .advise(
                "check the evaluation set and code: empty batches, division by a zero count, samples with extreme "
                "values, statistics of normalisation layers",
                "run the evaluation alone, with the saved weights nearest to that step, and look for the first batch "
                "whose output is not finite (a replay reruns training steps, and those are finite)",
            )
            .diagnosis(
                "evaluation-nan",
                f"Only the evaluation is non-finite, not the training: {root.message}.",
                "likely",
            )
        )


def _evaluation(view: View, root: Finding) -> bool:
    """True for an evaluation metric: by its role, or, without a training role, if it is logged as rarely as the
    validation loss and at the same steps."""
    known = role(view, root) or ""
    if known.startswith("val_") or known in _TRAINING:
        return known.startswith("val_")
    own = next((s for s in view.series if s.tag == root.tag), None)
    held_out = [s for s in view.of("val_loss") if root.step in s.step]
    return own is not None and any(len(own) <= 1.5 * len(s) for s in held_out)


def _finite_after(series: Series, step: int | None) -> bool:
    """True if all points after `step` are finite and there are any; without later ones, the points at `step`."""
    if step is None:
        return False
    after = series.value[series.step > step]
    after = after if len(after) else series.value[series.step == step]
    return bool(len(after) and np.isfinite(after).all())
