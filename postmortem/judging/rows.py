"""The wording of a report for a run whose log has no steps: row numbers are not steps.

Detectors and causes use the numbers of points as steps. Where these count rows, the report is worded here, in one place
for all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.patterns import later

if TYPE_CHECKING:
    import re

    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.report import Around, RunReport
    from postmortem.core.view import View

_STEP = later(r"\b(?P<word>[Ss]tep)(?P<plural>s?) (?P<n>-?\d+)(?:(?P<and> (?:to|and) )(?P<m>-?\d+))?(?!\.?\d)")


def without_row_numbers(report: RunReport, view: View) -> RunReport:
    """The report with "row 32 (epoch 1.65)" for "step 32": findings keep their row as evidence, and have no step."""
    rows = _Rows(view)
    story = report.diagnosis
    root = next((f for f in report.findings if story is not None and f.id in story.findings[:1]), None)
    if story is not None:
        # without a step of its own the root may quote one that the log names
        worded = root is None or root.step is not None
        story = rows.diagnosis(story) if worded else replace(story, last_good_step=None)
    return replace(
        report,
        first_step=None,
        last_step=None,
        findings=tuple(map(rows.finding, report.findings)),
        diagnosis=story,
        around=tuple(map(_around, report.around)),
    )


class _Rows:
    """The rows of a run, with the epoch of each where the log has one."""

    def __init__(self, view: View) -> None:
        epochs = next((s for s in view.series if s.role == "epoch"), None)
        pairs = [] if epochs is None else zip(epochs.step.tolist(), epochs.value.tolist(), strict=True)
        self.epoch: dict[int, float] = dict(pairs)

    def worded(self, text: str) -> str:
        return _STEP.sub(self._word, text)

    def finding(self, finding: Finding) -> Finding:
        row = finding.step
        if row is None:
            return finding
        evidence = {"row": row} | ({"epoch": self.epoch[row]} if row in self.epoch else {}) | finding.evidence
        return replace(finding, step=None, end_step=None, message=self.worded(finding.message), evidence=evidence)

    def diagnosis(self, story: Diagnosis) -> Diagnosis:
        def worded(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(map(self.worded, texts))

        return replace(
            story,
            summary=self.worded(story.summary),
            evidence_for=worded(story.evidence_for),
            evidence_against=worded(story.evidence_against),
            disprove=worded(story.disprove),
            next=worded(story.next),
            last_good_step=None,
        )

    def _word(self, match: re.Match[str]) -> str:
        word = "Row" if match["word"] == "Step" else "row"
        text = f"{word}{match['plural']} {match['n']}{self._epoch(int(match['n']))}"
        return text if match["m"] is None else f"{text}{match['and']}{match['m']}{self._epoch(int(match['m']))}"

    def _epoch(self, row: int) -> str:
        return f" (epoch {self.epoch[row]:.12g})" if row in self.epoch else ""


def _around(values: Around) -> Around:
    """The values without their rows; none at the onset where nothing was logged there or later."""
    at = None if values.at_step == values.before_step else values.at
    return replace(values, before_step=None, at_step=None, at=at)
