from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses._story import named, tell

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class Crash:
    """The program failed with a message; the metrics show nothing that led up to it."""

    name = "crash"
    priority = 70

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        crashes = [f for f in findings if f.name == "crash" and f.severity == "error"]
        if not crashes:
            return None
        root = crashes[0]
        return tell(
            view,
            "crash",
            root,
            [*crashes[1:], *named(findings, "hang")],
            summary=f"The program failed: {root.message}.",
            advice=[f"postmortem explain {root.evidence.get('kind')}"],
            replay=False,
        )
