"""JUnit XML: each run is a test case, so that CI servers list the failed ones.

The dialect that Jenkins, GitLab and pytest have in common: testsuites, testsuite, testcase with failure or
error (https://github.com/testmoapp/junitxml).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.shared.outline import (
    PROBLEM_HEADINGS,
    about,
    describe,
    event_where,
    explained,
    folded,
    headline,
    notable_events,
    problem_line,
    why_not_judged,
    worst_first,
)
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.report import Report, RunReport


@reporter("junit")
def render(report: Report, options: RenderOptions) -> str:
    """JUnit XML for CI: a test case per run; failed runs fail, runs that were not judged are errors."""
    cases = [_case(run, report.options.get("fail_on")) for run in worst_first(report)]
    cases += [_unread(clean(p.path), problem_line(p)) for p in report.problems]
    totals = {"name": "postmortem", "tests": str(len(cases))}
    for kind in ("failure", "error"):
        totals[f"{kind}s"] = str(sum(case.find(kind) is not None for case in cases))
    root = ET.Element("testsuites", totals)
    ET.SubElement(root, "testsuite", {**totals, "skipped": "0", "time": "0"}).extend(cases)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(run: RunReport, fail_on: object) -> ET.Element:
    case = ET.Element("testcase", {"classname": clean(run.path), "name": clean(run.name), "time": "0"})
    story = "\n".join(_story(run))
    if run.verdict == "not-judged":
        ET.SubElement(case, "error", {"type": "not-judged", "message": why_not_judged(run)}).text = story
    elif fail_on != "never" and (run.verdict == "failed" or (run.verdict == "suspect" and fail_on == "warning")):
        kind = clean(run.diagnosis.name) if run.diagnosis else run.verdict
        ET.SubElement(case, "failure", {"type": kind, "message": headline(run)}).text = story
    else:
        ET.SubElement(case, "system-out").text = story
    return case


def _unread(path: str, why: str) -> ET.Element:
    case = ET.Element("testcase", {"classname": path, "name": path, "time": "0"})
    ET.SubElement(case, "error", {"type": "unread", "message": why})
    return case


def _story(run: RunReport) -> Iterator[str]:
    yield about(run)
    yield from explained(run)
    for fold in folded(run):
        yield f"{clean(fold.first.code)} {clean(fold.first.name)}: {describe(fold, run)}"
        for consequence in fold.consequences:
            yield f"  {clean(consequence.first.code)} {clean(consequence.first.name)}: {describe(consequence, run)}"
    for event in notable_events(run)[:8]:
        yield f"{event_where(event, run)}: {clean(event.message, 600)}"
    for action in run.diagnosis.next if run.diagnosis else ():
        yield f"next: {clean(action)}"
    for problem in run.problems:
        yield f"{PROBLEM_HEADINGS[problem.kind]}: {problem_line(problem, run)}"
