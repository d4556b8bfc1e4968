"""Asks each cause for a diagnosis, takes the first one, and assigns consequences to their root finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.errors import described
from postmortem.core.model import Diagnosis, Problem
from postmortem.diagnoses import CAUSES

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.view import View


def diagnose(
    view: View, findings: tuple[Finding, ...]
) -> tuple[Diagnosis | None, tuple[Finding, ...], tuple[Problem, ...]]:
    """The diagnosis of the run (None: no cause fits), the findings with `because_of` set, root first, and problems.

    Causes are asked by priority, lowest number first. The findings that a diagnosis names after its first one are
    consequences of that one. A cause that raises becomes a problem, and the next one is asked.
    """
    problems: list[Problem] = []
    for cause in CAUSES:
        try:
            story = cause.diagnose(view, findings)
            if story is not None and not isinstance(story, Diagnosis):
                raise TypeError(f"{story!r} is not a Diagnosis")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a faulty diagnosis must not end the scan
            what = f"{cause.name}: the diagnosis failed: {described(error)}"
            problems.append(Problem(path=str(view.run.path), what=what, lost="this diagnosis"))
            continue
        if story is not None:
            return story, _under_root(findings, story), tuple(problems)
    return None, findings, tuple(problems)


def _under_root(findings: tuple[Finding, ...], story: Diagnosis) -> tuple[Finding, ...]:
    if not story.findings:
        return findings
    root, *consequences = story.findings
    onset = next((f.step for f in findings if f.id == root), None)
    saved_later = {
        f.id
        for f in findings
        if f.name == "checkpoint-nonfinite" and onset is not None and f.step is not None and onset <= f.step
    }
    place = {id_: i for i, id_ in enumerate(story.findings)}
    linked = [
        replace(f, because_of=root) if f.id in consequences or f.id in saved_later - {root} else f for f in findings
    ]
    return tuple(sorted(linked, key=lambda f: place.get(f.id, len(place))))
