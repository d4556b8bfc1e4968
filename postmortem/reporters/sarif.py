"""SARIF 2.1.0 for code-scanning services: rules are finding codes, locations are log lines.

Format: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from postmortem.core.model import json_value
from postmortem.detectors import DETECTORS
from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.json import report_value
from postmortem.reporters.shared.outline import location, problem_line
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.report import Report, RunReport

_LEVEL = {"error": "error", "warning": "warning", "info": "note"}
_NO_BYTES = re.compile("[\\ud800-\\udc7f\\udd00-\\udfff]")
"""Surrogates that do not represent a byte of a file name."""


@reporter("sarif")
def render(report: Report, options: RenderOptions) -> str:
    """SARIF 2.1.0 for code-scanning services: one result per finding, with stable rule ids and fingerprints."""
    names = {f.code: f.name for run in report.runs for f in run.findings}
    codes = sorted(names)
    index = {code: i for i, code in enumerate(codes)}
    seen: dict[str, int] = {}
    results = [_result(run, f, index[f.code], seen) for run in report.runs for f in run.findings]
    problems = [*report.problems, *(p for run in report.runs for p in run.problems)]
    unread = [
        {"level": "warning", "message": {"text": problem_line(p)}, "locations": [_location(p.path, p.line)]}
        for p in problems
    ]
    driver = {
        "name": "postmortem",
        "semanticVersion": report.version,
        "rules": [_rule(code, names[code]) for code in codes],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unread}],
                "results": results,
                "properties": {"runs": [_summary(value) for value in report_value(report)["runs"]]},
            }
        ],
    }
    return json.dumps(log, indent=2, allow_nan=False) + "\n"


def _rule(code: str, name: str) -> dict[str, Any]:
    page = next((inspect.getdoc(d) for d in DETECTORS if d.code == code), None) or name
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": clean(name)},
        "fullDescription": {"text": page.split("\n\n")[0]},
        "help": {"text": page},
    }


def _result(run: RunReport, finding: Finding, rule_index: int, seen: dict[str, int]) -> dict[str, Any]:
    identity = repr((finding.code, run.name, finding.tag, finding.rank, finding.step))
    seen[identity] = seen.get(identity, 0) + 1
    fingerprint = hashlib.sha256(f"{identity} {seen[identity]}".encode("utf-8", "backslashreplace")).hexdigest()[:32]
    place = _location(*location(run, finding))
    if finding.tag:
        tag = clean(finding.tag)
        place["logicalLocations"] = [
            {"name": tag, "fullyQualifiedName": f"{clean(run.name)}/{tag}", "kind": "variable"}
        ]
    frame = finding.evidence.get("frame")
    code = [_location(str(frame["file"]), frame.get("line"))] if isinstance(frame, dict) and frame.get("file") else []
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVEL[finding.severity],
        "message": {"text": f"{clean(run.name)}: {clean(finding.message) or clean(finding.name)}"},
        "locations": [place],
        **(
            {"relatedLocations": [{"id": 1, "message": {"text": "the line of the program"}, **code[0]}]} if code else {}
        ),
        "partialFingerprints": {"postmortem/v1": fingerprint},
        "properties": {
            "run": clean(run.name),
            "id": finding.id,
            "because_of": finding.because_of,
            "step": finding.step,
            "end_step": finding.end_step,
            "rank": finding.rank,
            "evidence": json_value(finding.evidence),
        },
    }


def _location(file: str, line: int | None) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": file_uri(file)}}
    if line is not None:
        physical["region"] = {"startLine": line}
    return {"physicalLocation": physical}


def file_uri(file: str) -> str:
    """A relative path as a relative URI, an absolute one as ``file://``, percent-encoded."""
    path = PurePath(file)
    named = _NO_BYTES.sub("?", path.as_posix())
    posix = quote(named.encode("utf-8", "surrogateescape"), safe="/")
    if not path.is_absolute():
        return posix
    return f"file://{posix}" if posix.startswith("/") else f"file:///{posix}"


def _summary(run: dict[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in ("run", "path", "verdict", "ended", "diagnosis")}
