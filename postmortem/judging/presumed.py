"""The wording of a report for a metric whose role was concluded from its behaviour, not from its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.objective import because, by_values_alone

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.run import Run

_NONFINITE = ("nan-onset", "inf-onset")
"""Findings that are the same for a metric without a role."""


def qualified(finding: Finding, run: Run) -> Finding:
    """The finding with the words "which looks like the objective", if that is what the run shows of its tag.

    Where the values alone suggest it, an error is a warning, and a warning is info: another metric may behave so.
    """
    found = run.presumed.get(finding.tag or "")
    if found is None or finding.tag is None or finding.name in _NONFINITE:
        return finding
    is_it = "looks like the objective" + (" on held-out data" if found.role == "val_loss" else "")
    start, text = finding.tag + " ", finding.message
    text = (
        f"{finding.tag}, which {is_it}, {text[len(start) :]}" if text.startswith(start) else f"{text}; {start}{is_it}"
    )
    severity = finding.severity
    if severity == "warning" and by_values_alone(found):
        severity = "info"
    elif severity == "error" and found.strength == "possible":
        severity = "warning"
    evidence = finding.evidence | {"presumed_role": found.role, "presumed_because": list(found.why)}
    return replace(finding, message=text, evidence=evidence, severity=severity)


def weakened(story: Diagnosis, root: Finding, run: Run) -> Diagnosis:
    """The diagnosis, no surer than the role of its root is, and what speaks against that role."""
    found = run.presumed.get(root.tag or "")
    if found is None or root.tag is None:
        return story
    return replace(
        story,
        strength=found.strength if story.strength == "certain" or found.strength == "possible" else story.strength,
        evidence_against=(*story.evidence_against, because(root.tag, found)),
    )
