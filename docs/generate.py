"""Writes the reference pages of this folder from the code: ``make docs``, or ``python docs/generate.py``.

tests/test_reference_pages.py fails where a page is not what this script writes.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from postmortem.cli.main import COMMANDS, cli
from postmortem.core.printable import printable
from postmortem.detectors import DETECTORS
from postmortem.diagnoses import CAUSES
from postmortem.replay.fixes import FIXES
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


PAGES = {"rules.md": rules, "signatures.md": signatures, "cli.md": command_line}


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
