"""JSON Lines: one line per run, for streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from postmortem.core.model import SCHEMA_VERSION
from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.json import problem_value, run_value

if TYPE_CHECKING:
    from postmortem.core.report import Report


@reporter("jsonl")
def render(report: Report, options: RenderOptions) -> str:
    """One JSON object per line: each run as in json, then each path that belongs to no run as {"problem": …}."""
    version = {"schema_version": SCHEMA_VERSION}
    lines = [{**version, **run_value(run)} for run in report.runs]
    lines += [{**version, "problem": problem_value(p)} for p in report.problems]
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
