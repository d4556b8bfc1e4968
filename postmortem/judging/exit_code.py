"""The exit code of a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.model import SEVERITIES

if TYPE_CHECKING:
    from postmortem.core.report import Report


def exit_code(report: Report, fail_on: str) -> int:
    """0 judged and nothing at or above `fail_on`; 1 findings at or above it; 2 nothing could be read; 3 nothing found,
    but a run could not be judged or data inside a file was lost."""
    if not report.runs:
        return 2
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on != "never" else ()
    if any(f.severity in counted for run in report.runs for f in run.findings):
        return 1
    lost = any(p.lost for run in report.runs for p in run.problems) or any(p.lost for p in report.problems)
    blind = any(run.verdict == "not-judged" or not any(source.points for source in run.sources) for run in report.runs)
    return 3 if lost or blind else 0
