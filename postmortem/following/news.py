"""What is new in a run: its report compared with what was reported before."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from postmortem.core.model import SEVERITIES, json_value
from postmortem.reporters.shared.outline import describe, folded, headline, place
from postmortem.reporters.shared.words import ENDED, clean, count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Ended, Finding, Severity, Verdict
    from postmortem.core.report import RunReport
    from postmortem.reporters.shared.outline import Fold

Kind = Literal["found", "finding", "withdrawn", "verdict", "ended", "silent", "goes-on", "rewritten", "gone"]
OPEN: tuple[Ended, ...] = ("running", "unknown", "cut")
"""Ends of a log that is not known to have ended."""
_ENDINGS: dict[Ended, Severity] = {"completed": "info", "interrupted": "info"}
_VERDICTS: dict[Verdict, Severity] = {"failed": "error", "suspect": "warning", "healthy": "info", "not-judged": "info"}
_UNTIL_IT_ENDS = ("DAT001",)
"""Findings that every file has while it is written to."""

Key = tuple[str, str | None, int | None]
"""Code, tag and rank of a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One thing that is new. severity: of the finding, or as grave as what happened; fields: more, in plain types."""

    kind: Kind
    run: str
    path: str
    message: str
    severity: Severity = "info"
    step: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def as_json(self) -> dict[str, Any]:
        """One object, strict JSON."""
        told = {"time": round(self.time, 3), "event": self.kind, "run": self.run, "path": self.path}
        return dict(
            json_value({**told, "severity": self.severity, "step": self.step, "message": self.message, **self.fields})
        )

    def line(self) -> str:
        """One line for people."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"{clock}  {clean(self.run, 60)}  {self.kind}: {clean(self.message, 400)}"


def of_run(report: RunReport, kind: Kind, message: str, severity: Severity = "info", **fields: Any) -> News:
    """News of a run as a whole, at its last step."""
    here = report.last_step
    return News(
        kind=kind, run=report.name, path=report.path, message=message, severity=severity, step=here, fields=fields
    )


@dataclass(slots=True)
class Told:
    """What is known of a run. findings: the gravest severity and the last step told of each."""

    verdict: Verdict
    ended: Ended
    last_step: int | None
    findings: dict[Key, tuple[Severity, int]]


def told_of(report: RunReport) -> Told:
    """All that a report says."""
    findings: dict[Key, tuple[Severity, int]] = {}
    for finding in report.findings:
        severity, step = findings.get(_key(finding), (finding.severity, -1))
        graver = min(severity, finding.severity, key=SEVERITIES.index)
        findings[_key(finding)] = graver, max(step, _last(finding))
    return Told(report.verdict, report.ended, report.last_step, findings)


def first_news(report: RunReport, *, live: bool) -> News:
    """A run that is seen for the first time: where it stands."""
    ended = "running" if live and report.ended in OPEN else report.ended
    message = f"{_words(report.verdict)}, {ENDED[ended]}{_at(report)} · {headline(report)}"
    findings = [_plain(f) for f in report.findings]
    severity = _VERDICTS[report.verdict]
    return of_run(report, "found", message, severity, verdict=report.verdict, ended=ended, findings=findings)


def news(before: Told, report: RunReport, *, live: bool) -> Iterator[News]:
    """What a report says beyond what was told. live: its files still grow."""
    if before.last_step is not None and (report.last_step is None or report.last_step < before.last_step):
        now = "it has none" if report.last_step is None else f"to {report.unit} {report.last_step}"
        was = f"{report.unit} {before.last_step}"
        yield of_run(report, "rewritten", f"its log was written anew: it went to {was}, now {now}")
        before = Told(before.verdict, before.ended, None, {})
    yield from _findings(before, report, live=live)
    if report.verdict != before.verdict:
        cause = f": {report.diagnosis.summary}" if report.diagnosis is not None else ""
        message = f"{_words(before.verdict)} → {_words(report.verdict)}{cause}"
        severity = _VERDICTS[report.verdict]
        yield of_run(report, "verdict", message, severity, verdict=report.verdict, was=before.verdict)
    if report.ended != before.ended and report.ended not in OPEN:
        severity = _ENDINGS.get(report.ended, "error")
        yield of_run(report, "ended", ENDED[report.ended] + _at(report), severity, ended=report.ended)


def _findings(before: Told, report: RunReport, *, live: bool) -> Iterator[News]:
    wanted = {id(f) for f in report.findings if _is_new(f, before) and not (live and f.code in _UNTIL_IT_ENDS)}
    for fold in folded(report):
        for part, consequences in _new_parts(fold, wanted):
            first = part.first
            more = f" (and {count(consequences, 'finding')} that follow from it)" if consequences else ""
            message = f"{first.code} {first.name}: {describe(part, report) or place(part, report)}{more}"
            was = before.findings.get(_key(first), (None, 0))[0]
            fields = {**_plain(first), "count": len(part.members), "was": was}
            told = of_run(report, "finding", message, first.severity)
            yield replace(told, step=first.step, fields=fields)
    known = {_key(f) for f in report.findings}
    for code, tag, rank in before.findings:
        if (code, tag, rank) not in known and code not in _UNTIL_IT_ENDS:
            message = f"{code}{f' in {tag}' if tag else ''} no longer holds with what was logged since"
            yield of_run(report, "withdrawn", message, code=code, tag=tag, rank=rank)


def _new_parts(fold: Fold, wanted: set[int]) -> Iterator[tuple[Fold, int]]:
    """What of a fold is new, with the number of its new consequences; consequences of what is known stand alone."""
    new = tuple(f for f in fold.members if id(f) in wanted)
    below = [part for inner in fold.consequences for part, _ in _new_parts(inner, wanted)]
    if new:
        yield replace(fold, members=new, consequences=()), sum(len(part.members) for part in below)
    else:
        yield from ((part, 0) for part in below)


def _is_new(finding: Finding, before: Told) -> bool:
    """Not told, told as less grave, or another one after the last one told."""
    if _key(finding) not in before.findings:
        return True
    severity, step = before.findings[_key(finding)]
    graver = SEVERITIES.index(finding.severity) < SEVERITIES.index(severity)
    return graver or (finding.step is not None and finding.step > step)


def _key(finding: Finding) -> Key:
    return finding.code, finding.tag, finding.rank


def _last(finding: Finding) -> int:
    return max(s for s in (finding.step, finding.end_step, -1) if s is not None)


def _plain(finding: Finding) -> dict[str, Any]:
    names = ("code", "name", "severity", "tag", "rank", "step")
    return {name: getattr(finding, name) for name in names}


def _words(verdict: Verdict) -> str:
    return verdict.replace("-", " ")


def _at(report: RunReport) -> str:
    return f" at {report.unit} {report.last_step}" if report.last_step is not None else ""
