from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, consequences, faults, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@diagnosis
class EvaluationNan:
    """Only the evaluation is non-finite: the training loss is finite, or is not logged near it.

    The onset lies between the last finite evaluation and the first non-finite one; the log does not show more.
    """

    name = "evaluation-nan"
    priority = 38

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = faults(view, findings)
        bad = [f for f in found if f.name in ("nan-onset", "inf-onset")]
        if not bad or found[0] is not bad[0] or not _evaluation(view, bad[0]):
            return None
        root = bad[0]
        last = root.evidence.get("last_finite_step")
        losses = [s for s in view.of("loss") if s.tag != root.tag and len(s)]
        loss = next((s for s in losses if root.step is None or s.step[-1] < root.step), None)
        where = f"between steps {last} and {root.step}" if last is not None else f"at or before step {root.step}"
        blind = f"; {loss.tag} is logged only up to step {loss.step[-1]}" if loss is not None else ""
        return (
            Story(view, root, consequences(findings, root))
            .last_good(step=None if last is None else int(last))
            .because(*(f.message for f in bad[1:4]))
            .against(*(f"{s.tag} is finite after it" for s in view.of("loss")[:1] if _finite_after(s, root.step)))
            .disproved_by(
                "the weights saved after the last finite evaluation are finite and give a finite evaluation "
                "(then the cause is the evaluation data or code)"
            )
            .advise(
                f"log the training loss and gradient norm at every step {where}",
                "check the evaluation set for empty batches and division by a zero count",
            )
            .replay()
            .diagnosis("evaluation-nan", f"The evaluation becomes non-finite {where}: {root.message}{blind}.")
        )


def _evaluation(view: View, root: Finding) -> bool:
    """True for a quantity of evaluations: by its role, or logged as rarely as the validation loss and at its steps."""
    if (role(view, root) or "").startswith("val_"):
        return True
    own = next((s for s in view.series if s.tag == root.tag), None)
    held_out = [s for s in view.of("val_loss") if root.step in s.step]
    return own is not None and any(len(own) <= 1.5 * len(s) for s in held_out)


def _finite_after(series: Series, step: int | None) -> bool:
    if step is None:
        return False
    after = series.value[series.step > step]
    return bool(len(after) and np.isfinite(after).all())
