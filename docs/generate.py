"""Writes the reference pages of this folder from the code: ``make docs``, or ``python docs/generate.py``.

tests/test_reference_pages.py fails where a page is not what this script writes.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from functools import cached_property
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

import postmortem
from postmortem import api
from postmortem.cli.main import COMMANDS, cli
from postmortem.core.printable import printable
from postmortem.detectors import DETECTORS
from postmortem.diagnoses import CAUSES
from postmortem.replay.fixes import FIXES
from postmortem.reporters import REPORTERS
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
WRITTEN = "<!-- Written by docs/generate.py (`make docs`): change the code, not this page. -->"
SECTIONS = (
    *(
        "What it looks for",
        "Why it matters",
        "How",
        "Typical causes",
        "What to try",
        "Known false positives",
        "Known false positive",
    ),
    *("What it changes", "When it is tried", "What a cure means"),
)
SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):", re.M)
WIDTH = 100


def rules() -> str:
    """Every finding with its page and options, then every diagnosis and every fix."""
    lines = ["# Findings, diagnoses and fixes", "", WRITTEN, ""]
    lines += ["`postmortem explain CODE` shows the same text. Codes and names are stable. Options are set in", ""]
    lines += ["```toml", "[tool.postmortem.detectors.NAME]", "option = value", "```", "", "## Findings", ""]
    lines += ["| code | name | severity | what it is |", "|---|---|---|---|"]
    lines += [
        f"| {d.code} | [{d.name}](#{d.code.lower()}-{d.name}) | {d.severity} | {_summary(d)} |" for d in DETECTORS
    ]
    for detector in DETECTORS:
        lines += ["", f"### {detector.code} {detector.name}", "", _page(detector), *_options(detector.Options)]
    lines += ["", "## Diagnoses", "", "Asked in this order; the first that fits tells the story of the run."]
    for cause in CAUSES:
        lines += ["", f"### {cause.name}", "", _page(cause)]
    lines += ["", "## Fixes", "", "A replay tries them on the failing step, in this order."]
    for fix in FIXES:
        lines += ["", f"### {fix.name}", "", _page(fix)]
    return "\n".join(lines) + "\n"


def signatures() -> str:
    """Every known failure text by family: what it means, what to do, and a line that it matches."""
    lines = [
        "# Signatures of failures in logs",
        "",
        WRITTEN,
        "",
        "`postmortem explain ID` shows causes and patterns as well. Where a message alone does not prove what it",
        'means, the meaning begins with "Usual meaning of this message"; a crash with that message is a likely cause,',
        "not a certain one.",
    ]
    for family, entries in groupby(CATALOGUE.values(), key=lambda s: s.family):
        lines += ["", f"## {family}"]
        for entry in entries:
            lines += ["", f"### {entry.id}", "", f"{entry.severity.capitalize()}. {entry.claim or entry.meaning}", ""]
            lines += [f"- {fix}" for fix in entry.fixes]
            lines += ["", "```text", printable(entry.examples[0]), "```"]
    return "\n".join(lines) + "\n"


def command_line() -> str:
    """The --help of every command."""
    lines = ["# Commands", "", WRITTEN]
    for name in ("", *COMMANDS):
        shown = CliRunner().invoke(cli, [*name.split(), "--help"], prog_name="postmortem", terminal_width=WIDTH)
        lines += ["", f"## postmortem {name}".rstrip(), "", "```text", shown.output.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def output() -> str:
    """Every output format, and every field of the JSON."""
    schema = json.loads(files("postmortem.reporters").joinpath("schema/report.schema.json").read_text("utf-8"))
    lines = [
        "# Output formats",
        "",
        WRITTEN,
        "",
        "`postmortem scan --format NAME`:",
        "",
        "| name | what it is |",
        "|---|---|",
    ]
    lines += [f"| `{render.name}` | {_summary(render)} |" for render in REPORTERS]
    lines += ["", "## Fields of the JSON", "", schema["description"], ""]
    lines += ["The schema: [report.schema.json](../postmortem/reporters/schema/report.schema.json)."]
    for name, part in (("report", schema), *schema["$defs"].items()):
        if "properties" in part:
            lines += ["", f"### {name}", "", "| field | type | what it is |", "|---|---|---|"]
            needed = part.get("required", ())
            for field, value in part["properties"].items():
                kind = _type(value) + ("" if field in needed else ", optional")
                lines.append(f"| `{field}` | {kind} | {value.get('description', '')} |")
    return "\n".join(lines) + "\n"


def _type(value: dict[str, Any]) -> str:
    """The type of a field in words: "integer or null", "list of finding"."""
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "const" in value or "enum" in value:
        return ", ".join(f"`{json.dumps(v)}`" for v in value.get("enum", [value.get("const")]))
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if value.get("type") == "array":
        return f"list of {_type(value['items'])}"
    if "properties" in value:
        return "{" + ", ".join(f"{name}: {_type(v)}" for name, v in value["properties"].items()) + "}"
    kinds = value.get("type", "any")
    return " or ".join(kinds if isinstance(kinds, list) else [kinds])


def python() -> str:
    """The public functions and classes with their signatures."""
    lines = ["# Python", "", WRITTEN, "", "```text", inspect.getdoc(postmortem) or "", "```"]
    functions = [name for name in postmortem.__all__ if not inspect.isclass(getattr(postmortem, name))]
    for name in (n for n in functions if not n.startswith("_")):
        thing = getattr(postmortem, name)
        called = getattr(api, name, thing)  # `replay` and `checkpoints` are packages as well
        lines += ["", f"## {name}", "", "```python", f"postmortem.{name}{_signature(called)}", "```", ""]
        lines.append(_text(called))
    lines += ["", "## Classes", ""]
    for name in (n for n in postmortem.__all__ if inspect.isclass(getattr(postmortem, n))):
        lines += [f"### {name}", "", _text(getattr(postmortem, name)), ""]
        lines += _members(getattr(postmortem, name))
    return "\n".join(lines).rstrip() + "\n"


def _signature(function: Any) -> str:
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))


def _text(thing: Any) -> str:
    """The docstring with its examples as code."""
    text = inspect.getdoc(thing) or ""
    return re.sub(r"(^>>> .*?)(?=\n\n|\Z)", r"```python\n\1\n```", text, flags=re.M | re.S)


def _members(kind: type) -> Iterator[str]:
    """The public methods and properties that the class itself defines."""
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, (property, cached_property))):
            continue
        shown = f"{name}{_signature(member)}" if inspect.isfunction(member) else name
        yield f"- `{shown.replace('(self, ', '(').replace('(self)', '()')}`: {_summary(member)}"
    yield ""


PAGES = {
    "rules.md": rules,
    "signatures.md": signatures,
    "cli.md": command_line,
    "output.md": output,
    "python.md": python,
}


def _summary(item: Any) -> str:
    return (inspect.getdoc(item) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _page(item: Any) -> str:
    """The docstring as Markdown: its sections in bold."""
    return SECTION.sub(r"**\1:**", inspect.getdoc(item) or "")


def _options(options: Any) -> Iterator[str]:
    if fields(options):
        yield from ("", f"**Options:** {inspect.getdoc(options)}", "")
        yield from (f"- `{field.name} = {field.default!r}`" for field in fields(options))


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), "utf-8")
