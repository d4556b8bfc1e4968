from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import known_rate, value_at
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, faults, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@diagnosis
class NanFromStart:
    """The loss was never finite, or only in the very first rows: the data or the initial weights may be non-finite.

    Likely if the very first steps are logged; if the first logged row comes later, the onset is unknown.
    """

    name = "nan-from-the-start"
    priority = 20

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        bad = [f for f in faults(view, findings) if f.name in NONFINITE]
        loss = view.main("loss")
        if not bad or loss is None or not len(loss):
            return None
        root = bad[0]
        if root.evidence.get("before") is not None or root.step is None:
            return None
        if root.step > int(loss.step[min(1, len(loss) - 1)]):
            return None
        finite = np.isfinite(float(loss.value[0])) and role(view, root) != "loss"
        first = _first_loss(view, loss) if finite else None
        infinite = root.name == "inf-onset"
        from_step_1 = root.step <= 1 and root.evidence.get("points", 0) > 1
        return (
            Story(view, root, consequences(findings, root))
            .because(*(f.message for f in named(findings, *NONFINITE)[:3]))
            .against(None if root.evidence.get("points", 0) > 1 else "only one point was logged")
            .disproved_by("the first batch and the initial weights are finite")
            .advise(
                first or (_after_updates(view, root) if infinite else None),
                "check the first batch: torch.isfinite(x).all() on inputs and targets "
                "(missing values, division by a zero standard deviation)"
                + (", and extreme values, which make a loss overflow" if infinite else ""),
                None if first or infinite else _after_updates(view, root),
                "check the weights before the first step, above all loaded ones: "
                "all(torch.isfinite(p).all() for p in model.parameters())",
            )
            .replay()
            .diagnosis(
                "nan-from-the-start",
                f"{root.message}." if first else f"{root.message}: no logged value of it is finite.",
                "likely" if from_step_1 else "possible",
            )
        )


def _after_updates(view: View, root: Finding) -> str | None:
    """Advice for a loss whose first row is not that of the first step: updates were made before it."""
    if not root.step or root.step < 2 or root.evidence.get("points", 0) < 2:
        return None
    rate = known_rate(view, root.step) or known_rate(view, None)
    at = value_at(view.main("lr"), root.step)
    low = f", for example to {number(at / 10, 1)}" if at else ""
    return (
        f"lower the learning rate{f' ({rate})' if rate else ''}{low}: the first logged loss is that of step "
        f"{root.step}, and at a rate that is far too high the updates before it make the loss infinite, then NaN"
    )


def _first_loss(view: View, loss: Series) -> str:
    """Advice for a finite loss in the first row: it may be the mean of a few steps, and the first update blew up."""
    rate = view.main("lr")
    at = f" at a learning rate of {number(float(rate.value[0]), 3)}" if rate is not None and len(rate) else ""
    return (
        f"{loss.tag} was {number(float(loss.value[0]), 3)} at step {loss.step[0]}{at}: "
        "if that is far above chance level, lower the learning rate or use a warm-up"
    )
