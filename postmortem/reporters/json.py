"""One JSON document with everything that was found; its schema ships as ``reporters/schema/report.schema.json``."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

from postmortem.core.model import SCHEMA_VERSION, Checkpoint, Diagnosis, Event, Problem, json_value
from postmortem.core.report import Around, Report, RunReport
from postmortem.reporters import RenderOptions, reporter

RENAMED: dict[type, dict[str, str]] = {
    Report: {"version": "postmortem"},
    RunReport: {"name": "run", "first_step": "steps"},
    Around: {"unit": "axis"},
    Diagnosis: {"evidence_for": "for", "evidence_against": "against"},
}
"""Fields with another key in the document."""

LEFT_OUT: dict[type, tuple[str, ...]] = {
    RunReport: ("drawing", "last_step", "unit", "run"),  # last_step and unit: parts of "steps"
    Event: ("source", "wall_time"),
    Problem: ("extent",),  # the name and severity of its finding
    Checkpoint: ("nonfinite", "problem", "looked_into"),  # findings of their own
}
"""Fields without a key in the document. All others are written, in the order of their dataclass."""


@reporter("json")
def render(report: Report, options: RenderOptions) -> str:
    """One strict JSON document: everything that was found, by the schema that ships with the package."""
    return json.dumps(report_value(report), indent=2, allow_nan=False) + "\n"


def report_value(report: Report) -> dict[str, Any]:
    """The report as plain JSON types; NaN and the infinities are the strings "nan", "inf" and "-inf"."""
    return dict(json_value({"schema_version": SCHEMA_VERSION, **_by_key(report)}))


def run_value(run: RunReport) -> dict[str, Any]:
    """One run as plain JSON types."""
    return dict(json_value(_by_key(run)))


def problem_value(problem: Problem) -> dict[str, Any]:
    """A problem that belongs to no run, as plain JSON types."""
    return dict(json_value(_by_key(problem)))


def _by_key(item: Any) -> dict[str, Any]:
    """The fields of a dataclass by their keys, and so on for the dataclasses in them."""
    keys, left_out = RENAMED.get(type(item), {}), LEFT_OUT.get(type(item), ())
    names = [f.name for f in fields(item) if f.name not in left_out]
    value = {keys.get(name, name): _value(name, getattr(item, name)) for name in names}
    if isinstance(item, RunReport):
        value["steps"] = {"first": item.first_step, "last": item.last_step}
        value["steps"] |= {"axis": item.unit} if item.unit != "step" else {}
        value["not_checked"] = [{"code": code, "why": why} for code, why in item.not_checked]
        value["notes"] = value.pop("notes")  # the last key
    return value


def _value(name: str, value: Any) -> Any:
    if name == "rank" and value == -1:  # an unknown rank in frames
        return None
    if name == "wall_time" and value is not None and not math.isfinite(value):
        return None
    if isinstance(value, tuple):
        return [_value(name, v) for v in value]
    return _by_key(value) if is_dataclass(value) else value
