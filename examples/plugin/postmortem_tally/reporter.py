"""Renders a report as tab-separated values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.plugins import reporter

if TYPE_CHECKING:
    from postmortem.plugins import RenderOptions, Report


@reporter("tsv")
def render(report: Report, options: RenderOptions) -> str:
    """Tab-separated values: one line per run with its name, verdict and diagnosis."""
    rows = [(run.name, run.verdict, run.diagnosis.name if run.diagnosis else "") for run in report.runs]
    return "".join("\t".join(row) + "\n" for row in [("run", "verdict", "diagnosis"), *rows])
