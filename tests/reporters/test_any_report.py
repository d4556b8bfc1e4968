"""Whatever a reader, a detector or a plugin puts into a report, every format renders it."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmortem.core.model import Checkpoint, Diagnosis, Event, Finding, Problem, Source
from postmortem.core.report import Around, Report, RunReport
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.html import fragment

text = st.text(st.characters(), max_size=20)
texts = st.lists(text, max_size=3).map(tuple)
step = st.none() | st.integers(-(2**63), 2**63 - 1)
rank = st.none() | st.integers(-1, 32_767)
number = st.floats(allow_nan=True, allow_infinity=True)
severity = st.sampled_from(["error", "warning", "info"])
ident = st.sampled_from(["f1", "f2", "f3", ""])
plain = st.recursive(
    st.none() | number | text | st.booleans() | step,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
)
fields = st.dictionaries(text, plain, max_size=2)
line = st.none() | st.integers(1, 10**9)

findings = st.builds(
    Finding,
    code=st.sampled_from(["NAN001", "RUN003", "XYZ999"]),
    name=text,
    severity=severity,
    message=text,
    tag=st.none() | text,
    rank=rank,
    step=step,
    end_step=step,
    wall_time=st.none() | number,
    evidence=fields,
    id=ident,
    because_of=st.none() | ident,
)
events = st.builds(
    Event,
    kind=text,
    severity=severity,
    message=text,
    file=text,
    line=line,
    step=step,
    rank=rank,
    wall_time=number,
    fields=fields,
)
problems = st.builds(Problem, path=text, what=text, offset=st.none() | st.integers(0), line=line, kept=text, lost=text)
diagnoses = st.builds(
    Diagnosis,
    name=text,
    summary=text,
    findings=st.lists(ident, max_size=2).map(tuple),
    evidence_for=texts,
    evidence_against=texts,
    disprove=texts,
    next=texts,
    last_good_step=step,
    last_good_checkpoint=st.none() | text,
)
curves = st.builds(
    Around,
    tag=text,
    role=text,
    before_step=step,
    before=st.none() | number,
    at_step=step,
    at=st.none() | number,
    curve=st.lists(number, max_size=80).map(tuple),
)


def tuples(of):
    return st.lists(of, max_size=3).map(tuple)


runs = st.builds(
    RunReport,
    name=text,
    path=text,
    verdict=st.sampled_from(["failed", "suspect", "not-judged", "healthy"]),
    ended=st.sampled_from(["completed", "crashed", "unknown"]),
    sources=tuples(st.builds(Source, kind=text, files=texts, points=st.integers(0, 10**12))),
    first_step=step,
    last_step=step,
    diagnosis=st.none() | diagnoses,
    findings=tuples(findings),
    events=tuples(events),
    problems=tuples(problems),
    checked=texts,
    not_checked=tuples(st.tuples(text, text)),
    around=tuples(curves),
    notes=texts,
    checkpoints=tuples(st.builds(Checkpoint, path=text, step=step, finite=st.none() | st.booleans())),
)
reports = st.builds(Report, runs=tuples(runs), version=st.just("0"), options=fields, problems=tuples(problems))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports, st.booleans(), st.booleans(), st.integers(1, 200))
def test_every_format_renders_any_report(report, color, verbose, width):
    """No exception, valid JSON and XML, nothing that cannot be written to a UTF-8 stream."""
    for render in REPORTERS:
        out = render(report, RenderOptions(width=width, color=color, verbose=verbose))
        out.encode("utf-8")
        if render.name in ("json", "sarif"):
            json.loads(out)
        elif render.name == "junit":
            ET.fromstring(out)
        elif render.name != "text" or not color:
            assert "\x1b" not in out
    for run in report.runs:
        for thing in (run, *run.findings):
            fragment(thing).encode("utf-8")
