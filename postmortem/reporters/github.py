"""Workflow commands of GitHub Actions: one annotation per root finding, at the log line that shows it.

Format and escapes: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
GitHub shows at most ten errors and ten warnings per step: consequences are left out, and the worst run comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.shared.outline import (
    describe,
    explained,
    folded,
    location,
    problem_line,
    totals,
    why_not_judged,
    worst_first,
)
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.report import Report

_LEVEL = {"error": "error", "warning": "warning", "info": "notice"}


@reporter("github")
def render(report: Report, options: RenderOptions) -> str:
    """Annotations for GitHub Actions: one per root finding, worst run first."""
    return "".join(f"{line}\n" for line in [*_annotations(report), totals(report)])


def _annotations(report: Report) -> Iterator[str]:
    for run in worst_first(report):
        if run.verdict == "not-judged":
            message = f"{clean(run.name)} was not judged: {why_not_judged(run)}"
            yield _command("warning", run.path, None, "not judged", message)
        for fold in folded(run):
            file, line = location(run, fold.first)
            message = f"{clean(run.name)}: {describe(fold, run)}"
            if run.diagnosis and fold.first.id in run.diagnosis.findings:
                message = "\n".join([message, *explained(run, 1000)])
            yield _command(_LEVEL[fold.first.severity], file, line, f"{fold.first.code} {fold.first.name}", message)
    for problem in [*report.problems, *(p for run in report.runs for p in run.problems)]:
        yield _command("notice", problem.path, problem.line, "damaged or unread data", problem_line(problem))


def _command(level: str, file: str, line: int | None, title: str, message: str) -> str:
    place = f"file={_property(clean(file))}" + (f",line={line}" if line is not None else "")
    return f"::{level} {place},title={_property(clean(title))}::{_escape(message)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
