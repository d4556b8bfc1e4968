"""Many runs at a terminal, grouped by root cause: what is common to a group, and what is each run's own."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from rich.cells import cell_len

from postmortem.core.printable import number
from postmortem.reporters.replay_text import culprit_lines
from postmortem.reporters.shared.culprit_words import actions as actions_of
from postmortem.reporters.shared.culprit_words import from_here, leads
from postmortem.reporters.shared.onset import onset, onset_unit
from postmortem.reporters.shared.outline import (
    CLAIMS,
    at_onset,
    folded,
    headline,
    in_common,
    name_among_others,
    seen_in_log,
    totals,
    triage,
)
from postmortem.reporters.shared.words import clean, count, squeezed
from postmortem.reporters.text_page import LABEL, VERDICT_STYLE, Page, next_actions, spark, verdict_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postmortem.core.model import Finding
    from postmortem.core.report import Around, Report, RunReport
    from postmortem.reporters import RenderOptions
    from postmortem.reporters.shared.outline import Group
    from postmortem.reporters.styled import Words

_SCREEN = 40  # lines of a usual terminal window; a page of more runs than _EACH is made to fit
_EACH = 10  # runs that failed or are suspect, each of which is told in full
_DETAILED_GROUPS = 16  # a page with more causes shows no next steps
_CURVES = (6, 24)  # columns of the curve in a row: at least, at most
_NARROWEST_NAME = 12  # columns
_CHANGES = (
    ("before", "peak"),
    ("before", "end"),
    ("before", "after"),
    ("best", "end"),
    ("top", "end"),
    ("level", "end"),
    ("peak", "value"),
    ("usual", "first"),
    ("before", "value"),
)
"""Pairs of entries in the evidence of findings: the value before and the one that made the finding."""


class _Detail(IntEnum):
    """How much of each group a page shows, from the most to the least."""

    STORIES = 0
    """Of each run a row, its explanation and its next step."""
    STEPS = 1
    """Of each run a row and its next step."""
    ROWS = 2
    """Of each run a row; the next step that all have."""
    NAMES = 3
    """The names of the first runs; what all have in common."""
    COUNTS = 4
    """One entry of at most two lines."""


def triage_page(report: Report, options: RenderOptions) -> Page:
    """The runs by verdict and cause, the worst first, in as much detail as fits on one screen."""
    groups = triage(report)
    bad = sum(len(g.runs) for g in groups if g.verdict in ("failed", "suspect"))
    few_causes = sum(g.verdict != "healthy" for g in groups) <= _DETAILED_GROUPS
    for detail in list(_Detail)[0 if bad <= _EACH else 1 :]:
        page = Page(options)
        _triage(page, report, groups, detail)
        fits = page.text().count("\n") <= _SCREEN
        if fits or options.verbose or detail is _Detail.STORIES or (detail is _Detail.NAMES and few_causes):
            break
    return page


def _triage(page: Page, report: Report, groups: Sequence[Group], detail: _Detail) -> None:
    page.add("", (totals(report), "bold"))
    for i, group in enumerate(groups):
        if i == 0 or detail is _Detail.STORIES or group.verdict in ("not-judged", "healthy"):
            page.blank()
        _group(page, group, detail)
    damaged = [run for run in report.runs if run.problems and run.verdict != "not-judged"]
    if damaged:
        page.blank()
        lost = count(sum(len(r.problems) for r in damaged), "problem")
        problems = f"{lost} while reading {count(len(damaged), 'run')}: "
        page.add("damage", problems, *_names(page, damaged), style="magenta")
    if any(g.verdict != "healthy" for g in groups):
        page.blank()
        page.add("", ("`postmortem scan PATH` of one run shows its full report, --verbose those of all runs.", "dim"))


def _group(page: Page, group: Group, detail: _Detail) -> None:
    """Runs with one cause: the cause, their number, then as much as `detail` says."""
    runs, style = group.runs, VERDICT_STYLE[group.verdict]
    verdict, runs_counted = verdict_words(runs[0]), count(len(runs), "run")
    if group.verdict == "healthy":
        page.add(verdict, runs_counted, ": ", *_names(page, runs), style=style)
        return
    cause = (group.cause if detail is _Detail.STORIES else f"{group.cause}{_strength(group)}", "bold")
    if group.verdict == "not-judged":
        page.add(verdict, cause, f"  {runs_counted}: ", *_names(page, runs), style=style)
    elif detail is not _Detail.COUNTS:
        page.add(verdict, cause, f"{_codes(group)}  {runs_counted}", style=style)
        _members(page, runs, detail)
    elif len(runs) == 1:
        words = f"  1 run: {name_among_others(runs[0])}  {headline(runs[0])}"
        page.add(verdict, cause, words, style=style, lines=2)
    else:
        page.add(verdict, cause, f"{_codes(group)}  {runs_counted}: ", *_names(page, runs), style=style)


def _strength(group: Group) -> str:
    """How sure the cause of a group is, where no run tells it: ", possible cause" if it is no more for one of them."""
    stories = [run.diagnosis for run in group.runs if run.diagnosis and run.diagnosis.name == group.cause]
    return next((f", {s} cause" for s in ("possible", "likely") if any(story.strength == s for story in stories)), "")


def _members(page: Page, runs: Sequence[RunReport], detail: _Detail) -> None:
    """What is common to the runs of a group stands once; what is a run's own, at the run."""
    common, actions = in_common(runs) if len(runs) > 1 else ("", [])
    if common and detail <= _Detail.STEPS:
        page.add("", (clean(common, 600), "dim"), lines=2)
    if detail is _Detail.NAMES:
        page.add("", *_names(page, runs))
        next_actions(page, actions[:1], lines=1)
        return
    rows = _rows(page, runs)
    for run, row in zip(runs, rows, strict=True):
        page.add("", *row, mark="- ", lines=2 if detail is _Detail.STORIES and len(runs) == 1 else 1)
        for line in culprit_lines(run.culprit)[: 2 if detail is _Detail.STORIES else 0]:
            page.add("", line, mark="  ", lines=1)
        if run.diagnosis is None:
            continue
        if detail is _Detail.STORIES and not common and not leads(run) and not _repeats_log(run):
            claim = "" if run.diagnosis.strength == "certain" else f"{CLAIMS[run.diagnosis.strength]}: "
            page.add("", claim, (clean(run.diagnosis.summary, 600), "dim"), mark="  ", lines=2)
        if detail is not _Detail.ROWS and run.diagnosis.next and run.diagnosis.next[0] not in actions:
            next_actions(page, actions_of(run, from_here)[:1])
    next_actions(page, actions[:1], lines=0 if detail is _Detail.STORIES else 1)


def _repeats_log(run: RunReport) -> bool:
    """True if the summary only repeats the log line of the headline; a summary that begins with a reason does not."""
    folds, diagnosis = folded(run), run.diagnosis
    event = seen_in_log(run, folds[0].first) if folds else None
    if event is None or diagnosis is None:
        return False
    summary = diagnosis.summary.lower()
    reasoned = any(summary.startswith(reason.lower()) for reason in diagnosis.evidence_for)
    return not reasoned and event.message[:60] in diagnosis.summary


def _root(run: RunReport) -> Finding | None:
    folds = folded(run)
    return folds[0].first if folds else None


def _codes(group: Group) -> str:
    """Codes and names of the root findings, and their tag if it is one: " (NAN001 nan-onset in train/loss)"."""
    roots = [root for root in map(_root, group.runs) if root]
    codes = sorted({f"{clean(f.code)} {clean(f.name)}" if f.name != group.cause else clean(f.code) for f in roots})
    tags = {f.tag for f in roots}
    tag = tags.pop() if len(tags) == 1 else None
    within = f" in {clean(tag, 40)}" if tag else ""
    return f" ({', '.join(codes)}{within})" if codes else ""


def _rows(page: Page, runs: Sequence[RunReport]) -> list[list[Words]]:
    """One row for each run, in columns: its name, where its finding is, the values of that finding, their curve.

    Where there is little room the curve is narrower, then the name is shortened in the middle.
    """
    roots = [_root(run) for run in runs]
    several_codes = len({root.code for root in roots if root}) > 1
    several_tags = len({root.tag for root in roots if root}) > 1
    own = [next((a for a in run.around if r and a.tag == r.tag), None) for run, r in zip(runs, roots, strict=True)]
    names = [name_among_others(run) for run in runs]
    places = [_place(root, code=several_codes, tag=several_tags) for root in roots]
    values = [_change(root, around) for root, around in zip(roots, own, strict=True)]
    place, value = (max(map(cell_len, column)) for column in (places, values))
    room = page.width - LABEL - 2 - (place + 2 if place else 0) - (value + 2 if value else 0)
    curve = max(_CURVES[0], min(_CURVES[1], room - 2 - max(map(cell_len, names)))) if any(own) else 0
    name = min(max(map(cell_len, names)), max(_NARROWEST_NAME, room - (curve + 2 if curve else 0)))
    several = len(runs) > 1
    rows: list[list[Words]] = []
    for run, called, where, change, around in zip(runs, names, places, values, own, strict=True):
        row: list[Words] = [(_padded(_middle_out(called, name), name), "bold")]
        row += [f"  {_padded(where, place)}"] if place else []
        row += [f"  {_padded(change, value)}"] if value else []
        row += ["  ", *spark(around, curve)] if around else [f"  {_said(run, room - name - 2 if several else 200)}"]
        rows.append(row)
    return rows


def _place(root: Finding | None, *, code: bool, tag: bool) -> str:
    if root is None:
        return ""
    parts = [clean(root.code)] if code else []
    parts += [clean(root.tag, 30)] if tag and root.tag else []
    return " ".join([*parts, *([f"{root.unit} {root.step}"] if root.step is not None else [])])


def _change(root: Finding | None, around: Around | None) -> str:
    """The values of a finding: "0.09 → 4023"; of a restart its steps; empty where it is not about values."""
    if root is None:
        return ""
    found = root.evidence
    for first, last in _CHANGES:
        if all(isinstance(found.get(key), (int, float)) for key in (first, last)):
            steps = f"{root.unit} " if found[last] == root.step else ""
            return f"{steps}{number(found[first], 6 if steps else 4)} → {number(found[last], 6 if steps else 4)}"
    return f"{number(around.before)} → {at_onset(around)}" if around else ""


def _said(run: RunReport, width: int) -> str:
    """The line of the log that a finding without a series was made from, or its message; empty without room for it."""
    root = _root(run)
    event = seen_in_log(run, root) if root else None
    message = event.message if event else root.message if root else ""
    return squeezed(message, width) if width >= _NARROWEST_NAME else ""


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _middle_out(text: str, width: int) -> str:
    """Both ends of a long name: runs of a sweep differ at either."""
    keep, short = width + 1, text
    while cell_len(short) > width:
        keep -= 1
        short = f"{text[: keep // 2]}…{text[len(text) - (keep - 1 - keep // 2) :]}"
    return short


def _names(page: Page, runs: Iterable[RunReport]) -> list[Words]:
    """Names of runs with the step of their root finding, as many as fit in two lines; all of those not judged."""
    named = list(runs)
    keep = page.verbose or all(r.verdict == "not-judged" for r in named)
    room = 10**9 if keep else 2 * (page.width - LABEL - 4) - 40
    words: list[str] = []
    for run in named:
        step = onset(run) if run.verdict in ("failed", "suspect") else None
        unit = "epoch " if onset_unit(run) == "epoch" else ""
        words.append(name_among_others(run, 80) + (f"@{unit}{step}" if step is not None else ""))
        room -= len(words[-1]) + 2
        if room < 0 and len(words) < len(named):
            return [", ".join(words), (f" and {len(named) - len(words):,} more", "dim")]
    return [", ".join(words)]
