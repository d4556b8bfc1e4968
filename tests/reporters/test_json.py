"""The JSON document has every field of the report, under the keys of its schema."""

from __future__ import annotations

import json
from dataclasses import fields
from importlib.resources import files

import pytest

from postmortem.core.model import Checkpoint, Diagnosis, Event, Finding, Problem, Source
from postmortem.core.report import Around, Report, RunReport
from postmortem.reporters import REPORTERS, RenderOptions

SCHEMA = json.loads(files("postmortem.reporters").joinpath("schema/report.schema.json").read_text("utf-8"))
OF = {**SCHEMA["$defs"], "checkpoint": SCHEMA["$defs"]["run"]["properties"]["checkpoints"]["items"]}

PROBLEM = Problem(path="train.out", what="cut")
ONE_OF_EACH = RunReport(
    name="exp7",
    path="runs/exp7",
    verdict="failed",
    ended="crashed",
    sources=(Source(kind="text", files=("train.out",), points=1),),
    diagnosis=Diagnosis(name="numerics", summary="NaN."),
    findings=(Finding(code="NAN001", name="nan-onset", severity="error", message="nan"),),
    events=(Event(kind="cuda-oom", severity="error", message="out of memory"),),
    problems=(PROBLEM,),
    around=(Around(tag="loss", role="loss", before_step=1, before=2.0, at_step=2, at=None),),
    checkpoints=(Checkpoint(path="a.pt", step=1),),
)
DOCUMENT = json.loads(REPORTERS["json"](Report(version="1", runs=(ONE_OF_EACH,), problems=(PROBLEM,)), RenderOptions()))
[RUN] = DOCUMENT["runs"]


@pytest.mark.parametrize(
    ("kind", "written", "schema", "without", "keys"),
    [
        (Report, DOCUMENT, SCHEMA, {"version"}, {"schema_version", "postmortem"}),
        (RunReport, RUN, OF["run"], {"name", "first_step", "last_step", "unit", "run", "drawing"}, {"run", "steps"}),
        (Diagnosis, RUN["diagnosis"], OF["diagnosis"], {"evidence_for", "evidence_against"}, {"for", "against"}),
        (Finding, RUN["findings"][0], OF["finding"], set(), set()),
        (Event, RUN["events"][0], OF["event"], {"source", "wall_time"}, set()),
        (Problem, RUN["problems"][0], OF["problem"], {"extent"}, set()),
        (Source, RUN["sources"][0], OF["source"], set(), set()),
        (Around, RUN["around"][0], OF["around"], {"unit"}, {"axis"}),
        (Checkpoint, RUN["checkpoints"][0], OF["checkpoint"], {"nonfinite", "problem", "looked_into"}, set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_is_written_and_in_the_schema(kind, written, schema, without, keys):
    """A field that a dataclass gets has its key in the document and in the schema, or is listed here as left out."""
    assert set(written) == ({f.name for f in fields(kind)} - without) | keys
    assert set(written) == set(schema["properties"])
