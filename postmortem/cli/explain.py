"""``postmortem explain`` and ``postmortem rules``: docstrings of registered classes, and pages of signatures."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import textwrap
from typing import Any

import click

from postmortem import signatures
from postmortem.cli.shared import CONTEXT, columns, echo_json
from postmortem.core.errors import UsageError, did_you_mean
from postmortem.core.printable import filled
from postmortem.detectors import DETECTORS
from postmortem.diagnoses import CAUSES
from postmortem.diagnoses.shared.story import sentence
from postmortem.reporters.shared.what_happened import CAUSES as CULPRITS
from postmortem.silent.faults import FAULTS

_HANGING = " " * 11
"""Before the further lines of a rule."""
_ANY_EXCEPTION = "generic-exception"
_EXCEPTION = re.compile(r"\w(?:Error|Exception|Warning|Interrupt|Exit|Failure)\b|\w: |Traceback \(")
"""What tells the message of an exception from a name that is mistyped."""
_MARK = re.compile(r"\s*(?:[-*] |\d+\. )")


def _pages() -> list[dict[str, Any]]:
    """Everything that can be explained: kind, code, name, severity, one line of summary, the whole text."""
    pages = [_page("finding", d.code, d.name, d.severity, _detector_text(d)) for d in DETECTORS]
    names = [(name, c) for c in CAUSES for name in (c.name, *getattr(c, "also", ()))]
    pages += [_page("diagnosis", "", name, "", inspect.getdoc(c) or "") for name, c in names]
    pages += [_page("signature", "", s.id, s.severity, signatures.page(s)) for s in signatures.CATALOGUE.values()]
    pages += [_page("silent fault", f.code, f.name, "error", inspect.getdoc(f) or "") for f in FAULTS]
    return pages


def _cause_pages() -> list[dict[str, Any]]:
    """The causes that a replay names, in a line each; those that are a diagnosis as well have its page."""
    where = "`postmortem replay` and `run` name it as the cause of a step that fails: see docs/replay.md."
    return [_page("cause", "", name, "", f"{sentence(text)}.\n\n{where}") for name, text in CULPRITS.items()]


def _detector_text(detector: Any) -> str:
    """The docstring, and the values of the options that it names."""
    text = inspect.getdoc(detector) or ""
    options = [f"{f.name} = {f.default}" for f in dataclasses.fields(detector.Options)]
    if not options:
        return text
    meaning = " ".join((inspect.getdoc(detector.Options) or "").split())
    return f"{text}\n\nOptions: {', '.join(options)}. {meaning}".rstrip()


def _fix_pages() -> list[dict[str, Any]]:
    """The pages of the fixes that a replay tries; none without torch, which their code needs."""
    if importlib.util.find_spec("torch") is None:
        return []
    from postmortem.replay.fixes import FIXES

    return [_page("fix", "", f.name, "", inspect.getdoc(f) or "") for f in FIXES]


def _page(kind: str, code: str, name: str, severity: str, text: str) -> dict[str, Any]:
    paragraph = next((part for part in text.split("\n\n") if part and not part.startswith("#")), "")
    first, ends, _ = " ".join(paragraph.split()).partition(". ")
    summary = first + ends.strip()
    return {"kind": kind, "code": code, "name": name, "severity": severity, "summary": summary, "text": text}


@click.command(context_settings=CONTEXT)
@click.argument("what", metavar="CODE|NAME")
@click.option("-v", "--verbose", is_flag=True, help="Also show the patterns of a signature, and all its examples.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain(what: str, verbose: bool, format_: str) -> int:
    """Explain a finding (NAN001 or nan-onset), a diagnosis, a silent fault (missing-zero-grad), or the signature of
    a failure in a log (cuda-oom, or the message itself): its meaning, how it is detected, causes, fixes."""
    pages = _pages()
    what = what.removeprefix("crash: ")  # as reports name the diagnosis of a crash with a signature
    chosen = _named(what, pages) or _named(what, _cause_pages())
    chosen = chosen or _named(what, _fix_pages())  # torch is imported only where nothing else is meant
    chosen = chosen or _named(what.replace("_", "-"), pages)  # as Python would spell it
    if not chosen:
        family = [f"{p['code']} {p['name']}" for p in pages if what and p["code"].startswith(what.upper())]
        if family:
            raise UsageError(f"{what!r} is a family of findings; choose one: {', '.join(family)}")
        met = signatures.CATALOGUE.match(what, exception=True)  # a message of a log, pasted
        if met is not None and (met[0].id != _ANY_EXCEPTION or _EXCEPTION.search(what)):
            chosen = [p for p in pages if p["name"] == met[0].id]
    if not chosen:
        names = [x for p in (*pages, *_cause_pages()) for x in (p["code"], p["name"]) if x]
        raise UsageError(f"unknown name {what!r}{did_you_mean(what, names)} (`postmortem rules` lists all)")
    if format_ == "json":
        echo_json(chosen)
    else:
        click.echo("\n\n".join(_page_text(page, verbose=verbose) for page in chosen))
    return 0


def _named(what: str, pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [p for p in pages if what and what.lower() in (p["code"].lower(), p["name"].lower())]


def _page_text(page: dict[str, Any], *, verbose: bool) -> str:
    about = f"{page['kind']}, {page['severity']}" if page["severity"] else page["kind"]
    width = min(columns(), 120)
    of_signature = page["kind"] == "signature"
    text = _for_a_terminal(page["text"], width, verbose=verbose) if of_signature else _prose(page["text"], width)
    return f"{page['code']} {page['name']} ({about})\n\n{text}".lstrip()


def _prose(text: str, width: int) -> str:
    """A docstring: its paragraphs wrapped anew, each entry of a list on its own; what is indented stays as it is."""
    parts = []
    for paragraph in text.split("\n\n"):
        entries: list[str] = []
        for line in paragraph.splitlines():
            own = line.startswith(" ") or _MARK.match(line) is not None or not entries or entries[-1].startswith("    ")
            if own:
                entries.append(line)
            else:
                entries[-1] += " " + line
        wrapped = [[e] if e.startswith("    ") else _wrapped(e, width, "") for e in entries]
        parts.append("\n".join(line for lines in wrapped for line in lines))
    return "\n\n".join(parts)


def _for_a_terminal(page: str, width: int, *, verbose: bool) -> str:
    """The Markdown of a signature as wrapped text. Without `verbose` its patterns are counted, one example is shown."""
    parts = []
    for section in page.split("\n## "):
        title, _, body = section.strip().partition("\n")
        lines = [line for line in body.splitlines() if line.strip() and line != "```"]
        if not verbose:
            lines = _shortened(title, lines)
        wrapped = [text for line in lines for text in _wrapped(line, width, "" if title.startswith("# ") else "  ")]
        parts.append("\n".join(wrapped if title.startswith("# ") else [f"{title}:", *wrapped]))
    return "\n\n".join(parts)


def _shortened(title: str, lines: list[str]) -> list[str]:
    if title == "Example":
        more = [f"… {len(lines) - 1} more (--verbose shows all)"] if len(lines) > 1 else []
        return [*lines[:1], *more]
    patterns = [line for line in lines if line.startswith(("- `", "- but not if"))]
    if title != "How it is found" or not patterns:
        return lines
    number = "1 pattern" if len(patterns) == 1 else f"{len(patterns)} patterns"
    others = [line for line in lines if line not in patterns]
    return [others[0].removesuffix(":") + f" ({number}; --verbose shows them).", *others[1:]]


def _wrapped(line: str, width: int, indent: str) -> list[str]:
    mark = _MARK.match(line)
    hanging = indent + " " * (len(mark[0]) if mark else 0)
    return textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)


@click.command(context_settings=CONTEXT)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def rules(format_: str) -> int:
    """List all findings with their codes, all diagnoses, all silent faults, and all signatures of failures in logs."""
    pages = _pages()
    if format_ == "json":
        echo_json([{k: v for k, v in p.items() if k != "text"} for p in pages])
        return 0
    titles = {
        "finding": "Findings",
        "diagnosis": "Diagnoses",
        "silent fault": "Silent faults (postmortem check)",
        "signature": "Signatures of failures in logs",
    }
    for kind, title in titles.items():
        click.echo(f"{title}:")
        for p in (p for p in pages if p["kind"] == kind):
            row = f"{p['code']:<7}{p['name']:<28} {p['severity']:<8} {p['summary']}"
            indent = " " * (len(row) - len(row.lstrip()) + 2)
            click.echo("\n".join(filled(row.strip(), columns(), indent, _HANGING)))
        click.echo("")
    return 0
