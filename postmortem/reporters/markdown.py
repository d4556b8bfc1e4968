"""Markdown to paste into an issue or a chat: the triage of many runs, and a report of each unhealthy run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.core.printable import listed, number
from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.replay_text import culprit_lines
from postmortem.reporters.shared.commands import with_commands
from postmortem.reporters.shared.culprit_words import actions, from_here, leads
from postmortem.reporters.shared.onset import onset, onset_unit
from postmortem.reporters.shared.outline import (
    CLAIMS,
    about,
    at_onset,
    describe,
    event_where,
    folded,
    headline,
    no_checkpoint,
    notable_events,
    problem_line,
    problem_lists,
    totals,
    triage,
    unchecked,
    worst_first,
)
from postmortem.reporters.shared.words import clean, count, sparkline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postmortem.core.model import Diagnosis
    from postmortem.core.report import Report, RunReport
    from postmortem.reporters.shared.outline import Group

_STORIES = 10  # runs with a full report: a GitHub issue has at most 65,536 characters
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_SPECIAL = re.compile(r"[\\`*{}\[\]<>|~$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^(?:[#+-]|\d+[.)])")


@reporter("markdown")
def render(report: Report, options: RenderOptions) -> str:
    """Markdown to paste into an issue: a triage table, then the report of each run that is not healthy."""
    lines: list[str] = []
    stories = [run for run in worst_first(report) if run.verdict != "healthy" or len(report.runs) == 1]
    if len(report.runs) != 1:
        table = _table(("verdict", "cause", "runs", "which"), [_row(g) for g in triage(report)])
        lines += [f"**{totals(report)}**", "", *table]
    shown = stories if options.verbose else stories[:_STORIES]
    for run in shown:
        lines += ["", *_run(run)]
    if len(stories) > len(shown):
        lines += ["", f"… and {count(len(stories) - len(shown), 'more run')} in the table above."]
    lines += _list("Not read", [problem_line(p) for p in report.problems])
    return "\n".join(lines).strip() + "\n"


def prose(text: object, limit: int = 1500) -> str:
    """`text` escaped, so that it cannot format the page, create a tag or mention a person."""
    return _SPECIAL.sub(_escaped, clean(text, limit)).replace("@", "@<!-- -->")


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    return _ENTITIES.get(char) or f"{char[:-1]}\\{char[-1]}"


def code(text: object, limit: int = 300) -> str:
    """A code span, with a fence longer than any run of backticks inside."""
    inside = clean(text, limit)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", inside)), default=0))
    pad = " " if inside[:1] == "`" or inside[-1:] == "`" or not inside else ""
    return f"{fence}{pad}{inside}{pad}{fence}"


def _cell(markdown: str) -> str:
    """A table cell, in which a bar ends the cell even inside a code span."""
    return re.sub(r"(?<!\\)\|", r"\\|", markdown)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return lines + ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]


def _row(group: Group) -> tuple[str, str, str, str]:
    steps = [onset(r) if group.verdict in ("failed", "suspect") else None for r in group.runs]
    named = zip(group.runs, steps, strict=True)
    units = {"step": "", "epoch": "epoch "}
    names = [code(r.name, 80) + ("" if step is None else f" at {units[onset_unit(r)]}{step}") for r, step in named]
    most = len(names) if group.verdict == "not-judged" else 12
    return group.verdict, prose(group.cause), str(len(group.runs)), listed(names, most)


def _run(run: RunReport) -> list[str]:
    lines = [
        f"### {code(run.name)}: {run.verdict.replace('-', ' ')}",
        "",
        f"**{prose(headline(run))}**",
        "",
        f"{code(run.path)} · {prose(about(run))}",
    ]
    diagnosis = run.diagnosis
    culprit = _list("Culprit", culprit_lines(run.culprit))
    if leads(run):
        lines += culprit
    if diagnosis:
        claim = f"{CLAIMS[diagnosis.strength]}: **{prose(diagnosis.name)}**. {prose(diagnosis.summary)}"
        lines += ["", f"From the log alone, without the culprit: {claim}" if leads(run) else claim]
    if not leads(run):
        lines += culprit
    if run.around:
        rows = [
            (code(a.tag), number(a.before), f"**{at_onset(a)}**", sparkline(a.curve, linear=a.role == "lr"))
            for a in run.around
        ]
        lines += ["", *_table(("", "before", "at onset" if run.findings else "last", "curve"), rows)]
    lines += _findings(run)
    if diagnosis:
        lines += _list("Evidence for", diagnosis.evidence_for)
        lines += _list("Evidence against", diagnosis.evidence_against)
        if not leads(run):
            lines += _list("Would disprove it", diagnosis.disprove)
        lines += _last_good(run, diagnosis)
        lines += _next(actions(run, from_here))
    lines += _list("Log", [f"{event_where(e, run)}: {e.kind}: {e.message}" for e in notable_events(run)[:8]])
    for heading, problems in problem_lists(run):
        lines += _list(heading.capitalize(), problems)
    if run.not_checked:
        lines += ["", "Not checked: " + "; ".join(prose(reason) for reason in unchecked(run))]
    return lines


def _last_good(run: RunReport, diagnosis: Diagnosis) -> list[str]:
    if diagnosis.last_good_step is None and not diagnosis.last_good_checkpoint:
        return []
    step = "step unknown" if diagnosis.last_good_step is None else f"{run.unit} {diagnosis.last_good_step}"
    saved = no_checkpoint(run)
    if diagnosis.last_good_checkpoint:
        saved = f"checkpoint {code(diagnosis.last_good_checkpoint)}"
    return ["", f"**Last good**: {step}, {saved}"]


def _findings(run: RunReport) -> list[str]:
    lines = []
    for fold in folded(run):
        for indent, part in [("", fold), *(("  ", c) for c in fold.consequences)]:
            named = code(f"{part.first.code} {part.first.name}")
            lines.append(f"{indent}- {named} {prose(describe(part, run, told=True))}")
    return ["", "**Findings**", "", *lines] if lines else []


def _next(actions: Sequence[str]) -> list[str]:
    lines = ["", "**Next**", ""] if actions else []
    for action in actions:
        words, commands = with_commands(action)
        lines.append(f"- {prose(words)}{' ' if words and commands else ''}{' '.join(code(c, 0) for c in commands)}")
    return lines


def _list(title: str, items: Sequence[str]) -> list[str]:
    return ["", f"**{title}**", "", *(f"- {prose(item)}" for item in items)] if items else []
