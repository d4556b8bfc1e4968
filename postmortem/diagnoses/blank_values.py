from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import numpy as np

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, consequences, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@diagnosis
class UnwrittenValues:
    """A loss or gradient norm has no value while the training continues, likely because the program cannot write NaN or
    Inf.

    JSON encoders write null for NaN, pandas' to_csv an empty cell, some loggers nothing. Likely if the log has nulls or
    empty cells from some row on to the end; possible if the metric is only missing, as a program may also stop logging
    it. Other metrics and the saved weights distinguish the two cases.
    """

    name = "unwritten-values"
    priority = 57

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = named(findings, "blank-values")
        grave = [f for f in found if f.severity == "error"]
        if not found or (has_errors(findings) and not grave):
            return None
        root = (grave or found)[0]
        after = [s for s in view.of("loss", "grad_norm") if s.tag != root.tag and _finite_after(s, root.step)]
        saved = [c for c in view.checkpoints if c.step is not None and root.step is not None and c.step >= root.step]
        bad, good = (next((c for c in saved if c.finite is finite), None) for finite in (False, True))
        others = [f for f in found if f is not root]
        look = f"`postmortem checkpoints {shlex.quote(str(view.run.path))}`"
        likely = root.severity == "error" and not after and good is None
        return (
            Story(view, root, [*others, *(f for f in consequences(findings, root) if f not in others)])
            .because(
                f"the weights saved at step {bad.step} hold non-finite values" if bad is not None else None,
                *(f.message for f in others[:2]),
            )
            .against(
                *(f"{s.tag} is finite after step {root.step}" for s in after[:2]),
                f"the weights saved at step {good.step} are finite" if good is not None else None,
            )
            .disproved_by("weights saved after it are finite", "the program logs this metric only in some phases")
            .advise(
                None if saved else f"inspect the weights saved after step {root.step}: {look}",
                'log NaN by name: json.dumps writes NaN by default, pandas with to_csv(na_rep="nan")',
            )
            .replay()
            .diagnosis("unwritten-values", f"{root.message}.", "likely" if likely else "possible")
        )


def _finite_after(series: Series, step: int | None) -> bool:
    """Whether a series has points from `step` on, and all of them are finite."""
    after = series.value[series.step >= step] if step is not None else series.value[:0]
    return bool(len(after) and np.isfinite(after).all())
