"""One JSON document with everything that was found; its schema ships as ``reporters/schema/report.schema.json``."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from postmortem.core.model import SCHEMA_VERSION, json_value
from postmortem.reporters import RenderOptions, reporter

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Event, Finding, Problem
    from postmortem.core.report import Around, Report, RunReport


@reporter("json")
def render(report: Report, options: RenderOptions) -> str:
    """One strict JSON document: everything that was found, by the schema that ships with the package."""
    return json.dumps(report_value(report), indent=2, allow_nan=False) + "\n"


def report_value(report: Report) -> dict[str, Any]:
    """The report as plain JSON types; NaN and the infinities are the strings "nan", "inf" and "-inf"."""
    value: dict[str, Any] = json_value(
        {
            "schema_version": SCHEMA_VERSION,
            "postmortem": report.version,
            "options": report.options,
            "runs": [run_value(run) for run in report.runs],
            "problems": [_problem(p) for p in report.problems],
        }
    )
    return value


def run_value(run: RunReport) -> dict[str, Any]:
    """One run as plain JSON types."""
    value: dict[str, Any] = json_value(
        {
            "run": run.name,
            "path": run.path,
            "verdict": run.verdict,
            "sources": [{"kind": s.kind, "files": s.files, "points": s.points} for s in run.sources],
            "steps": {"first": run.first_step, "last": run.last_step},
            "ended": run.ended,
            "diagnosis": _diagnosis(run.diagnosis) if run.diagnosis else None,
            "findings": [_finding(f) for f in run.findings],
            "events": [_event(e) for e in run.events],
            "problems": [_problem(p) for p in run.problems],
            "checked": run.checked,
            "not_checked": [{"code": code, "why": why} for code, why in run.not_checked],
            "around": [_around(a) for a in run.around],
            "checkpoints": [{"path": c.path, "step": c.step, "finite": c.finite} for c in run.checkpoints],
            "culprit": run.culprit.as_json() if run.culprit else None,
            "notes": run.notes,
        }
    )
    return value


def problem_value(problem: Problem) -> dict[str, Any]:
    """A problem that belongs to no run, as plain JSON types."""
    value: dict[str, Any] = json_value(_problem(problem))
    return value


def _diagnosis(d: Diagnosis) -> dict[str, Any]:
    return {
        "name": d.name,
        "summary": d.summary,
        "findings": d.findings,
        "for": d.evidence_for,
        "against": d.evidence_against,
        "disprove": d.disprove,
        "next": d.next,
        "last_good_step": d.last_good_step,
        "last_good_checkpoint": d.last_good_checkpoint,
    }


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "id": f.id,
        "code": f.code,
        "name": f.name,
        "severity": f.severity,
        "tag": f.tag,
        "rank": _rank(f.rank),
        "step": f.step,
        "end_step": f.end_step,
        "wall_time": f.wall_time if f.wall_time is not None and math.isfinite(f.wall_time) else None,
        "message": f.message,
        "evidence": f.evidence,
        "because_of": f.because_of,
    }


def _event(e: Event) -> dict[str, Any]:
    return {
        "kind": e.kind,
        "severity": e.severity,
        "file": e.file,
        "line": e.line,
        "step": e.step,
        "rank": _rank(e.rank),
        "message": e.message,
        "fields": e.fields,
    }


def _problem(p: Problem) -> dict[str, Any]:
    return {"path": p.path, "offset": p.offset, "line": p.line, "what": p.what, "kept": p.kept, "lost": p.lost}


def _around(a: Around) -> dict[str, Any]:
    return {
        "tag": a.tag,
        "role": a.role,
        "before_step": a.before_step,
        "before": a.before,
        "at_step": a.at_step,
        "at": a.at,
        "curve": a.curve,
    }


def _rank(rank: int | None) -> int | None:
    """An unknown rank is -1 in frames and null here."""
    return None if rank == -1 else rank
