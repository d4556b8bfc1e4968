"""Reports on runs that were not read from files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postmortem.core.report import RunReport


def without_commands(report: RunReport) -> RunReport:
    """The report of a run that has no files: its advice names no command that would look for them."""
    if report.diagnosis is not None:
        actions = tuple(action for action in report.diagnosis.next if "postmortem " not in action)
        report.diagnosis = replace(report.diagnosis, next=actions)
    return report
