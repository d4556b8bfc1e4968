"""Markdown to paste into an issue or a chat: the triage of many runs, and the story of those that are not healthy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.replay_text import culprit_lines
from postmortem.reporters.shared.outline import (
    about,
    at_onset,
    event_where,
    folded,
    headline,
    no_checkpoint,
    onset,
    problem_line,
    says,
    told_events,
    totals,
    triage,
    unchecked,
    with_commands,
    worst_first,
)
from postmortem.reporters.shared.words import clean, count, listed, number, sparkline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postmortem.core.report import Report, RunReport
    from postmortem.reporters.shared.outline import Group

_STORIES = 10  # runs told in full: an issue holds 65,536 characters
_SPECIAL = re.compile(r"[\\`*{}\[\]<>|~$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^(?:[#+-]|\d+[.)])")


@reporter("markdown")
def render(report: Report, options: RenderOptions) -> str:
    """Markdown to paste into an issue: a triage table, then the story of each run that is not healthy."""
    lines: list[str] = []
    told = [run for run in worst_first(report) if run.verdict != "healthy" or len(report.runs) == 1]
    if len(report.runs) != 1:
        lines += [f"**{totals(report)}**", "", *_table(("verdict", "cause", "runs", "which"), [_row(g) for g in triage(report)])]
    shown = told if options.verbose else told[:_STORIES]
    for run in shown:
        lines += ["", *_run(run)]
    if len(told) > len(shown):
        lines += ["", f"… and {count(len(told) - len(shown), 'more run')} in the table above."]
    lines += _list("Not read", [problem_line(p) for p in report.problems])
    return "\n".join(lines).strip() + "\n"


def prose(text: object, limit: int = 1500) -> str:
    """Words from outside, so that none of them formats the page, makes a tag or calls a person."""
    return _SPECIAL.sub(_escaped, clean(text, limit)).replace("@", "@<!-- -->")


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    return "&lt;" if char == "<" else "&gt;" if char == ">" else "&amp;" if char == "&" else char[:-1] + "\\" + char[-1]


def code(text: object, limit: int = 300) -> str:
    """A code span: nothing in it is formatted. Its fence is longer than any run of backticks inside."""
    inside = clean(text, limit)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", inside)), default=0))
    pad = " " if inside[:1] == "`" or inside[-1:] == "`" or not inside else ""
    return f"{fence}{pad}{inside}{pad}{fence}"


def _cell(markdown: str) -> str:
    """What stands in a table: there a bar ends the cell even inside a code span."""
    return re.sub(r"(?<!\\)\|", r"\\|", markdown)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return lines + ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]


def _row(group: Group) -> tuple[str, str, str, str]:
    names = [code(r.name, 80) + (f" at {onset(r)}" if group.verdict in ("failed", "suspect") and onset(r) is not None else "") for r in group.runs]
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
    if diagnosis:
        lines += ["", f"**{prose(diagnosis.name)}**: {prose(diagnosis.summary)}"]
    lines += _list("Culprit", culprit_lines(run.culprit))
    if run.around:
        rows = [(code(a.tag), number(a.before), f"**{at_onset(a)}**", sparkline(a.curve, linear=a.role == "lr")) for a in run.around]
        lines += ["", *_table(("", "before", "at onset", "course"), rows)]
    lines += _findings(run)
    if diagnosis:
        lines += _list("For", diagnosis.evidence_for) + _list("Against", diagnosis.evidence_against) + _list("Wrong if", diagnosis.disprove)
        if diagnosis.last_good_step is not None or diagnosis.last_good_checkpoint:
            saved = f", checkpoint {code(diagnosis.last_good_checkpoint)}" if diagnosis.last_good_checkpoint else f", {no_checkpoint(run)}"
            lines += ["", f"**Last good**: step {'unknown' if diagnosis.last_good_step is None else diagnosis.last_good_step}{saved}"]
        lines += _next(diagnosis.next)
    lines += _list("Log", [f"{event_where(e, run)}: {e.kind}: {e.message}" for e in told_events(run)[:8]])
    lines += _list("Damage", [problem_line(p, run) for p in run.problems])
    if run.not_checked:
        lines += ["", "Not checked: " + "; ".join(prose(reason) for reason in unchecked(run))]
    return lines


def _findings(run: RunReport) -> list[str]:
    lines = []
    told = run.diagnosis.summary if run.diagnosis else ""
    for fold in folded(run):
        lines.append(f"- {code(f'{fold.first.code} {fold.first.name}')} {prose(says(fold, told))}")
        lines += [f"  - {code(f'{c.first.code} {c.first.name}')} {prose(says(c, told))}" for c in fold.consequences]
    return ["", "**Findings**", "", *lines] if lines else []


def _next(actions: Sequence[str]) -> list[str]:
    lines = ["", "**Next**", ""] if actions else []
    for action in actions:
        words, commands = with_commands(action)
        lines.append(f"- {prose(words)}{' ' if words and commands else ''}{' '.join(code(c, 0) for c in commands)}")
    return lines


def _list(title: str, items: Sequence[str]) -> list[str]:
    return ["", f"**{title}**", "", *(f"- {prose(item)}" for item in items)] if items else []
