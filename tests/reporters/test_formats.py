"""Every format renders the same reports; each one's own rules are in its own tests below."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from postmortem.core.model import Finding, Source
from postmortem.core.report import Report, RunReport
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.html import fragment

FORMATS = ("github", "html", "json", "jsonl", "junit", "markdown", "sarif", "text")
SCHEMA = json.loads(files("postmortem.reporters").joinpath("schema/report.schema.json").read_text("utf-8"))


def rendered(name: str, report: Report) -> str:
    return REPORTERS[name](report, RenderOptions(width=100))


def strict(text: str) -> object:
    """Parses JSON as the standard has it: a bare NaN or Infinity is an error."""

    def refuse(word: str) -> None:
        raise AssertionError(f"not strict JSON: {word}")

    return json.loads(text, parse_constant=refuse)


def test_all_formats_are_registered():
    """The names that --format takes."""
    assert {r.name for r in REPORTERS} >= set(FORMATS)
    assert not REPORTERS.broken


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("report", ["one_failed", "many", "hostile", "one_hostile", "four_hundred", "empty_report"])
def test_every_format_renders_every_report(request, name, report):
    """The same answer twice, nothing a terminal would obey, and encodable as UTF-8."""
    report = request.getfixturevalue(report)
    text = rendered(name, report)
    assert text == rendered(name, report)
    assert text.endswith("\n") or not text  # JSON Lines of no run
    text.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_tells_the_root_finding(one_failed, name):
    """The code of the root, the run and the words of the detector are in all of them."""
    text = rendered(name, one_failed)
    for said in ("NAN003", "exp7", "is inf while the loss is finite"):
        assert said.replace("_", "\\_") in text or said in text


# --- json, jsonl


@pytest.mark.parametrize("report", ["one_failed", "many", "hostile", "empty_report"])
def test_json_keeps_to_its_schema(request, report):
    """The schema that ships with the package describes what is written, to the key."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(strict(rendered("json", request.getfixturevalue(report))), SCHEMA)


def test_json_has_the_documented_structure(many):
    """The keys of schema version 1; numbers that JSON does not know are strings, an unknown rank is null."""
    many["exp7"].findings = tuple(f if f.rank is None else _with_rank(f, -1) for f in many["exp7"].findings)
    document = json.loads(rendered("json", many))
    assert document["schema_version"] == 1
    assert document["postmortem"] == "0.1.0"
    run = next(r for r in document["runs"] if r["run"] == "exp7")
    assert run["steps"] == {"first": 0, "last": 4900}
    assert (run["verdict"], run["ended"]) == ("failed", "out-of-memory")
    assert run["sources"][0] == {"kind": "tensorboard", "files": ["runs/exp7/events.out.tfevents.1"], "points": 12345}
    assert {"for", "against", "next", "last_good_step", "last_good_checkpoint"} <= set(run["diagnosis"])
    assert [f["because_of"] for f in run["findings"]].count("f1") == 12
    assert run["findings"][0]["evidence"]["at"] == "nan"
    assert run["findings"][0]["rank"] is None
    assert run["events"][0]["fields"] == {"gib": "inf"}
    assert run["not_checked"] == [{"code": "LOS006", "why": "no validation loss found"}]
    assert {r["run"] for r in document["runs"]} == {r.name for r in many.runs}


def _with_rank(finding, rank):
    from dataclasses import replace

    return replace(finding, rank=rank)


def test_jsonl_is_one_line_per_run(many):
    """Each line is a run of the JSON with its schema version; a path without a run has a line of its own."""
    lines = [strict(line) for line in rendered("jsonl", many).splitlines()]
    runs = json.loads(rendered("json", many))["runs"]
    assert [{k: v for k, v in line.items() if k != "schema_version"} for line in lines[:-1]] == runs
    assert all(line["schema_version"] == 1 for line in lines)
    assert lines[-1]["problem"]["path"] == "runs/notes.bin"


# --- markdown, github


def test_markdown_is_a_table_and_a_story(many):
    """One row per cause; the story of each run that is not healthy, with the command to copy."""
    text = rendered("markdown", many)
    assert "| failed | out-of-memory | 2 | `oom-1` at 250, `oom-2` at 250 |" in text
    assert "### `exp7`: failed" in text
    assert "`postmortem replay runs/exp7 --checkpoint runs/exp7/ckpt-4750.pt --step 4820`" in text
    assert "  - `NAN001 nan-onset` in 12 tags" in text
    assert "### `good-1`" not in text


def test_markdown_calls_nobody_and_makes_no_tag(hostile):
    """Names of people, HTML and bars from a log stay text."""
    text = rendered("markdown", hostile)
    outside_code = re.sub(r"(`+)[^`].*?(?<!`)\1(?!`)", "", text)
    assert "<script" not in outside_code
    assert "@all" not in outside_code
    rows = [line for line in text.splitlines() if line.startswith("| failed")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)


def test_github_annotates_roots_at_the_log_line(many):
    """One annotation per root finding; consequences would only use up the ten that are shown."""
    lines = rendered("github", many).splitlines()
    assert lines[0].startswith("::error file=runs/oom-1/slurm-1.out,line=77,title=RUN003 crash::oom-1: ")
    assert sum(line.startswith("::error") for line in lines) == 3
    assert any(line.startswith("::warning file=runs/empty-1") for line in lines)
    assert not any("NAN001" in line for line in lines)


def test_github_annotates_the_file_that_holds_the_numbers():
    """Where a finding has no file of its own, it points at the source with the most numbers, not at an empty one."""
    finding = Finding(
        id="f1", code="NAN001", name="nan-onset", severity="error", tag="loss", step=7, message="loss is NaN at step 7"
    )
    sources = (
        Source(kind="trainer_state", files=("a/trainer_state.json",), points=0),
        Source(kind="text", files=("a/train.log",), points=40),
    )
    run = RunReport(name="a", path="a", verdict="failed", ended="unknown", sources=sources, findings=(finding,))
    assert rendered("github", Report(runs=(run,), version="0")).startswith("::error file=a/train.log,")


def test_github_commands_cannot_be_injected(hostile):
    """A log line with a workflow command in it makes none."""
    lines = rendered("github", hostile).splitlines()
    commands = [line for line in lines if line.startswith("::")]
    assert len(lines) == len(commands) + 1
    assert all(re.match(r"::(error|warning|notice) file=[^,:]*(,line=\d+)?,title=[^,:]*::", line) for line in commands)


# --- junit, sarif


def test_junit_counts_runs(many):
    """Failed runs fail, what could not be judged or read is an error, healthy and suspect runs pass."""
    root = ET.fromstring(rendered("junit", many))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("8", "3", "2")
    failed = {
        c.get("name"): c.find("failure").get("message") for c in root.iter("testcase") if c.find("failure") is not None
    }
    assert failed["exp7"] == "NAN003 nonfinite-gradient in grad_norm at step 4820"
    assert "postmortem replay" in next(c for c in root.iter("testcase") if c.get("name") == "exp7").find("failure").text


@pytest.mark.parametrize(("fail_on", "failures"), [("error", "3"), ("warning", "4"), ("never", "0")])
def test_junit_follows_fail_on(many, fail_on, failures):
    """What fails the command fails the test suite."""
    many.options["fail_on"] = fail_on
    assert ET.fromstring(rendered("junit", many)).get("failures") == failures


def test_sarif_has_stable_rules_and_fingerprints(many, one_failed):
    """Rule ids are codes; the fingerprint of a finding does not depend on what else was scanned."""
    log = strict(rendered("sarif", many))["runs"][0]
    rules = [r["id"] for r in log["tool"]["driver"]["rules"]]
    assert rules == sorted(set(rules)) == ["LOS003", "NAN001", "NAN003", "RUN001", "RUN003"]
    assert all(rules[r["ruleIndex"]] == r["ruleId"] for r in log["results"])
    prints = [r["partialFingerprints"]["postmortem/v1"] for r in log["results"]]
    assert len(prints) == len(set(prints)) == 17
    alone = strict(rendered("sarif", one_failed))["runs"][0]["results"]
    assert {r["partialFingerprints"]["postmortem/v1"] for r in alone} < set(prints)
    crash = next(r for r in log["results"] if r["ruleId"] == "RUN003")
    assert crash["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "runs/oom-1/slurm-1.out"},
        "region": {"startLine": 77},
    }
    assert len(log["invocations"][0]["toolExecutionNotifications"]) == 3


def test_sarif_paths_are_uris(one_failed):
    """Spaces and bytes that are not UTF-8 are percent-encoded, absolute paths are file URIs."""
    for path, uri in (("a b/c.out", "a%20b/c.out"), ("/x/\udc80", "file:///x/%80")):
        source = type(one_failed.runs[0].sources[0])(kind="text", files=(path,), points=1)
        one_failed.runs[0].sources = (source,)
        results = json.loads(rendered("sarif", one_failed))["runs"][0]["results"]
        assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


# --- html


class Page(HTMLParser):
    """Checks that tags are closed in order and remembers which there are."""

    VOID = ("meta", "br", "wbr", "rect", "circle", "polyline")
    CDATA_CONTENT_ELEMENTS = ("script", "style")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href") or k.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("report", ["one_failed", "many", "hostile", "empty_report"])
def test_html_is_one_well_formed_page_that_loads_nothing(request, report):
    """Every tag is closed; its only script is the one that its policy names by a hash."""
    text = rendered("html", request.getfixturevalue(report))
    page = Page(text)
    assert page.open == []
    assert all(address.startswith("#run-") for address in page.addresses)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    policy = re.search(r"script-src ('.*?')\"", text)[1]
    assert [policy] == [f"'sha256-{digest}'" for digest in digests]


def test_html_links_every_run(many):
    """An anchor per run, and a row of the table that leads to it."""
    text = rendered("html", many)
    assert all(f'id="run-{k}"' in text and f'href="#run-{k}"' in text for k in range(len(many.runs)))


def test_the_notebook_draws_a_curve_per_series(many):
    """A red band where it is not finite."""
    text = fragment(many)
    assert text.count("<svg") == 3 + 2
    assert text.count('fill="#d33"') == 2


def test_fragments_for_notebooks(many, hostile):
    """A report, a run and a finding each give a closed piece of HTML without scripts."""
    for report in (many, hostile):
        run: RunReport = report.runs[-1] if report is many else report.runs[0]
        for thing in (report, run, *run.findings[:1]):
            page = Page(fragment(thing))
            assert thing._repr_html_() == fragment(thing)
            assert page.open == []
            assert "script" not in page.tags
            assert "html" not in page.tags
