from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.schedule import value_at
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_WATCHED = ("loss", "grad_norm")


@diagnosis
class Restart:
    """The run was restarted and continued; nothing else is wrong with the surviving history.

    Overwritten points are used as evidence: an attempt that became non-finite is named, with what changed after it.
    """

    name = "restarted"
    priority = 90

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        resets = named(findings, "step-reset")
        if not resets or has_errors(findings):
            return None
        root = resets[0]
        failed = next((s for s in view.overwritten if s.role in _WATCHED and not np.isfinite(s.value).all()), None)
        from_the_start = root.evidence["after"] <= (view.first_step or 0)
        return (
            Story(view, root, resets[1:])
            .because(_changed_rate(view) if failed is not None else None, *(r.message for r in resets[1:3]))
            .disproved_by("two jobs wrote into the same log at the same time")
            .advise(
                "if it was meant to resume: the step counter started from the beginning; "
                "check that the checkpoint was found and its step loaded"
                if from_the_start
                else None,
                "keep the settings of the last attempt: an earlier one failed" if failed is not None else None,
                "give each restart its own folder or run id",
            )
            .diagnosis(
                "restarted",
                f"The run was restarted: {root.message}. "
                + ("Overwritten points are not judged." if failed is None else _failed(failed)),
                "likely",
            )
        )


def _failed(series: Series) -> str:
    """Describes where an overwritten attempt became non-finite."""
    at = int(np.argmax(~np.isfinite(series.value)))
    value = number(float(series.value[at]))
    return (
        f"An earlier attempt had failed: {series.tag} was {value} from step {series.step[at]} on. It is finite since."
    )


def _changed_rate(view: View) -> str | None:
    """The learning rate of the surviving history where it differs from that of overwritten steps."""
    old, new = next((s for s in view.overwritten if s.role == "lr"), None), view.main("lr")
    if old is None or new is None or not len(old) or (now := value_at(new, int(old.step[0]))) is None:
        return None
    was = float(old.value[0])
    return f"{new.tag} was {number(was)} at step {old.step[0]}, and is {number(now)} since" if was != now else None
