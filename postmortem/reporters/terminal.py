"""Text for people at a terminal: one run in full, many runs as a triage page.

Everything that came out of a log is cleaned of control characters, and nothing is read as rich markup.
"""

from __future__ import annotations

import itertools
from io import StringIO
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from postmortem.core.printable import number
from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.replay_text import culprit_lines
from postmortem.reporters.shared.outline import (
    CLAIMS,
    about,
    at_onset,
    describe,
    event_facts,
    event_where,
    folded,
    headline,
    in_common,
    no_checkpoint,
    notable_events,
    onset,
    place,
    problem_line,
    problem_lists,
    seen_in_log,
    totals,
    triage,
    unchecked,
    with_commands,
    worst_first,
)
from postmortem.reporters.shared.words import MARKS, clean, count, sparkline, squeezed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postmortem.core.model import Diagnosis
    from postmortem.core.report import Around, Report, RunReport
    from postmortem.reporters.shared.outline import Fold, Group

    Words = str | tuple[str, str]
    """Plain words, or words with a style."""

_VERDICT_STYLE = {"failed": "bold red", "suspect": "bold yellow", "not-judged": "bold magenta", "healthy": "bold green"}
_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_LABEL = 12  # columns of the labels on the left
_NARROWEST = 50  # columns; below this a table of values does not fit
_BRIEF = 4  # lines of one kind without --verbose
_DETAILED_GROUPS = 16  # a triage page with more causes shows no summaries and next steps


@reporter("text")
def render(report: Report, options: RenderOptions) -> str:
    """Text for people: the report of one run, or a triage page of many, worst first."""
    page = _Page(options)
    if len(report.runs) == 1:
        _run(page, report.runs[0])
    else:
        _triage(page, report)
        for run in worst_first(report) if options.verbose else ():
            if run.verdict != "healthy":
                page.blank()
                _run(page, run)
    if report.problems:
        page.blank()
        _bullets(page, "not read", [problem_line(p) for p in report.problems], style="magenta")
    return page.text()


class _Page:
    """Lines of a fixed width: a label on the left, wrapped words to its right."""

    def __init__(self, options: RenderOptions) -> None:
        self.verbose = options.verbose
        self.width = max(options.width, _NARROWEST)
        self._out = StringIO()
        self._console = Console(
            file=self._out,
            width=self.width,
            color_system="standard" if options.color else None,
            force_terminal=options.color,
            legacy_windows=False,
            _environ={},  # colour and width are decided by the caller
        )

    def text(self) -> str:
        return self._out.getvalue()

    def blank(self) -> None:
        self._console.print()

    def add(
        self, label: str, *words: Words, mark: Words = "", style: str = "dim", wrap: bool = True, lines: int = 0
    ) -> None:
        """Prints `words` to the right of `label`, wrapped after `mark` (a bullet or an indent).

        `lines` limits the number of lines; 0 means no limit.
        """
        head = Text.assemble((label, style), " " * max(_LABEL - cell_len(label), 1), mark)
        margin = head.cell_len
        content = Text.assemble(*words)
        wrapped = list(content.wrap(self._console, self.width - margin, overflow="fold")) if wrap else [content]
        if lines and len(wrapped) > lines:
            del wrapped[lines:]
            wrapped[-1].truncate(self.width - margin - 1)
            wrapped[-1].append("…")
        for i, line in enumerate(wrapped):
            whole = head + line if i == 0 else Text(" " * margin) + line
            whole.rstrip()
            self._console.print(whole, soft_wrap=True)


def _bullets(page: _Page, label: str, items: Sequence[str], *, style: str = "dim", most: int = _BRIEF) -> None:
    """One entry per item under one label; without --verbose the first few, each in at most three lines."""
    shown = items if page.verbose else items[:most]
    for i, item in enumerate(shown):
        page.add(label if i == 0 else "", item, mark="- ", style=style, lines=0 if page.verbose else 3)
    _more(page, len(items) - len(shown))


def _more(page: _Page, n: int, mark: str = "  ") -> None:
    if n > 0:
        page.add("", (f"… {n:,} more (--verbose shows all)", "dim"), mark=mark)


# --- one run


def _run(page: _Page, run: RunReport) -> None:
    page.add(_verdict(run), (clean(run.name), "bold"), " · ", headline(run), style=_VERDICT_STYLE[run.verdict])
    page.add("", (" · ".join([clean(run.path), about(run)]), "dim"))
    bad = run.verdict in ("failed", "suspect")
    if bad:
        page.blank()
    diagnosis, folds = run.diagnosis, folded(run)
    if diagnosis:
        page.add("why", *_claim(diagnosis), clean(diagnosis.summary, 1500 if page.verbose else 450))
    for i, line in enumerate(culprit_lines(run.culprit)):
        page.add("culprit" if i == 0 else "", line)
    if bad or page.verbose:
        _values(page, run.around)
    _findings(page, folds, diagnosis.summary if diagnosis else "")
    if diagnosis:
        _bullets(page, "for", [clean(text, 800) for text in diagnosis.evidence_for])
        _bullets(page, "against", [clean(text, 800) for text in diagnosis.evidence_against], most=2)
        _bullets(page, "unless", [clean(text, 800) for text in diagnosis.disprove], most=2)
        _last_good(page, run)
        _next(page, diagnosis.next)
    elif bad and folds:
        _next(page, [f"postmortem explain {folds[0].first.code}"])
    _events(page, run)
    for heading, problems in problem_lists(run):
        _bullets(page, heading, problems, style="magenta")
    _not_checked(page, run)
    if page.verbose:
        _bullets(page, "notes", [clean(n, 800) for n in run.notes])


def _claim(diagnosis: Diagnosis) -> tuple[Words, ...]:
    """ "Likely cause: out-of-memory. "."""
    return f"{CLAIMS[diagnosis.strength]}: ", (clean(diagnosis.name), "bold"), ". "


def _verdict(run: RunReport) -> str:
    return run.verdict.upper().replace("-", " ")


def _values(page: _Page, around: Sequence[Around]) -> None:
    """A small table: each series before and at the onset, and its curve."""
    if not around:
        return
    steps = {(a.before_step, a.at_step) for a in around}
    before, at = next(iter(steps)) if len(steps) == 1 else (None, None)
    heads = ("", "before" if before is None else f"step {before}", "at onset" if at is None else f"step {at}")
    rows = [(_short(clean(a.tag), min(30, page.width - 42)), number(a.before), at_onset(a)) for a in around]
    name, left, right = (max(cell_len(row[k]) for row in [heads, *rows]) for k in range(3))
    room = min(40, page.width - _LABEL - name - left - right - 6)
    heading = "  curve" if room >= 8 else ""
    page.add("values", (f"{'':{name}}  {heads[1]:>{left}}  {heads[2]:>{right}}{heading}", "dim"), wrap=False)
    for (tag, was, became), a in zip(rows, around, strict=True):
        style = "bold red" if became in ("nan", "inf", "-inf") else "bold"
        start = f"{tag}{' ' * (name - cell_len(tag))}  {was:>{left}}  "
        page.add("", start, (f"{became:>{right}}", style), "  ", *_spark(a, room), wrap=False)


def _spark(around: Around, width: int) -> list[Words]:
    """The curve of a series, non-finite values in red; empty without a curve or without room."""
    if width < 8 or len(around.curve) < 3:
        return []
    marks = sparkline(around.curve, width, linear=around.role == "lr")
    pieces = itertools.groupby(marks, key=lambda mark: mark in MARKS)
    return [("".join(piece), "red" if bad else "cyan") for bad, piece in pieces]


def _short(text: str, width: int) -> str:
    """The end of a long name: tags of one family differ at the end."""
    while cell_len(text) > max(width, 1):
        text = "…" + text[2:]
    return text


def _findings(page: _Page, folds: Sequence[Fold], summary: str) -> None:
    shown = folds if page.verbose else folds[:6]
    for i, fold in enumerate(shown):
        _fold(page, "findings" if i == 0 else "", fold, "● ", summary)
        consequences = fold.consequences if page.verbose else fold.consequences[:6]
        for consequence in consequences:
            _fold(page, "", consequence, "  └ ", summary)
        _more(page, len(fold.consequences) - len(consequences), "    ")
    _more(page, len(folds) - len(shown))


def _fold(page: _Page, label: str, fold: Fold, mark: str, summary: str) -> None:
    style = _SEVERITY_STYLE[fold.first.severity]
    named = (f"{clean(fold.first.code)} {clean(fold.first.name)}", style)
    page.add(label, named, "  ", describe(fold, summary), mark=(mark, style), lines=0 if page.verbose else 3)
    if page.verbose and len(fold.members) > 1:
        for member in fold.members:
            page.add("", clean(member.message), mark=" " * len(mark) + "· ")


def _last_good(page: _Page, run: RunReport) -> None:
    good = run.diagnosis
    if good is None or (good.last_good_step is None and good.last_good_checkpoint is None):
        return
    step = "step unknown" if good.last_good_step is None else f"step {good.last_good_step}"
    saved = f"checkpoint {clean(good.last_good_checkpoint)}" if good.last_good_checkpoint else no_checkpoint(run)
    page.add("last good", (step, "bold green"), ", ", saved)


def _next(page: _Page, actions: Sequence[str]) -> None:
    """What to do. A command is on its own line and is not wrapped, so that it can be copied."""
    label = "next"
    for action in actions:
        words, commands = with_commands(action)
        if words:
            page.add(label, words, mark="- ", style="bold")
            label = ""
        for command in commands:
            page.add(label, (command, "bold"), mark=("  $ " if words else "$ ", "dim"), style="bold", wrap=False)
            label = ""


def _events(page: _Page, run: RunReport) -> None:
    events = notable_events(run)
    if page.verbose:
        events += [e for e in run.events if e.severity == "info"]
    shown = events if page.verbose else events[:_BRIEF]
    for i, event in enumerate(shown):
        style = _SEVERITY_STYLE[event.severity]
        message = squeezed(event.message, 600 if page.verbose else 200)
        words: list[Words] = [(clean(event.kind), style), (f"  {event_where(event, run)}  ", "dim"), message]
        page.add("log" if i == 0 else "", *words, mark="- ", lines=0 if page.verbose else 4)
        for fact in event_facts(event):
            page.add("", (fact, "dim"), mark="  ", lines=0 if page.verbose else 3)
    _more(page, len(events) - len(shown))


def _not_checked(page: _Page, run: RunReport) -> None:
    """Checks that were not done, by reason."""
    reasons = unchecked(run)
    if page.verbose:
        _bullets(page, "not checked", reasons)
    elif reasons:
        page.add("not checked", (f"{count(len(run.not_checked), 'check')}: {'; '.join(reasons)}", "dim"), lines=2)


# --- many runs


def _triage(page: _Page, report: Report) -> None:
    page.add("", (totals(report), "bold"))
    groups = triage(report)
    detailed = sum(g.verdict != "healthy" for g in groups) <= _DETAILED_GROUPS
    for group in groups:
        if detailed:
            page.blank()
        _group(page, group, detailed)
    damaged = [run for run in report.runs if run.problems and run.verdict != "not-judged"]
    if damaged:
        page.blank()
        lost = count(sum(len(r.problems) for r in damaged), "problem")
        problems = f"{lost} while reading {count(len(damaged), 'run')}: "
        page.add("damage", problems, *_names(page, damaged), style="magenta")
    if any(g.verdict != "healthy" for g in groups):
        page.blank()
        page.add("", ("`postmortem scan PATH` of one run shows its full report, --verbose those of all runs.", "dim"))


def _group(page: _Page, group: Group, detailed: bool) -> None:
    """Runs with one cause: the cause, their number and names; on a short page also the summary and what to do next."""
    runs, style = group.runs, _VERDICT_STYLE[group.verdict]
    verdict, runs_counted = _verdict(runs[0]), count(len(runs), "run")
    if group.verdict == "healthy":
        page.add(verdict, runs_counted, ": ", *_names(page, runs), style=style)
        return
    cause = (group.cause, "bold")
    if group.verdict != "not-judged" and detailed:
        page.add(verdict, cause, f"{_codes(group)}  {runs_counted}", style=style)
        _group_story(page, runs)
    elif group.verdict != "not-judged" and len(runs) == 1:
        words = f"  1 run: {clean(runs[0].name)}  {headline(runs[0])}"
        page.add(verdict, cause, words, style=style, lines=2)
    else:
        page.add(verdict, cause, f"{_codes(group)}  {runs_counted}: ", *_names(page, runs), style=style)


def _group_story(page: _Page, runs: Sequence[RunReport]) -> None:
    """Up to five runs, each with its own explanation and next step; of more, what is common to all."""
    if len(runs) > 5:
        page.add("", *_names(page, runs))
        common, actions = in_common(runs)
        if common:
            page.add("", (clean(common, 600), "dim"), lines=2)
        _next(page, actions[:1])
        return
    for run in runs:
        _member(page, run, alone=len(runs) == 1)
        for line in culprit_lines(run.culprit)[:2]:
            page.add("", line, mark="  ", lines=1)
        if run.diagnosis:
            if not _repeats_log(run):
                claim = "" if run.diagnosis.strength == "certain" else f"{CLAIMS[run.diagnosis.strength]}: "
                page.add("", claim, (clean(run.diagnosis.summary, 600), "dim"), mark="  ", lines=2)
            _next(page, run.diagnosis.next[:1])


def _repeats_log(run: RunReport) -> bool:
    """True if the summary only repeats the log line of the headline; a summary that begins with a reason does not."""
    folds, diagnosis = folded(run), run.diagnosis
    event = seen_in_log(run, folds[0].first) if folds else None
    if event is None or diagnosis is None:
        return False
    summary = diagnosis.summary.lower()
    reasoned = any(summary.startswith(reason.lower()) for reason in diagnosis.evidence_for)
    return not reasoned and event.message[:60] in diagnosis.summary


def _codes(group: Group) -> str:
    """Codes and names of the root findings: " (NAN001 nan-onset, NAN002 inf-onset)"."""
    roots = [folds[0].first for folds in map(folded, group.runs) if folds and group.verdict in ("failed", "suspect")]
    codes = sorted({f"{clean(f.code)} {clean(f.name)}" if f.name != group.cause else clean(f.code) for f in roots})
    return f" ({', '.join(codes)})" if codes else ""


def _member(page: _Page, run: RunReport, *, alone: bool) -> None:
    """One run of a small group: its name, what happened where, values around the onset; one line if not alone."""
    folds = folded(run)
    change: list[Words] = []
    if run.around and folds and folds[0].first.tag is not None:
        shown = run.around[0]
        change = [f"  {number(shown.before)} → {at_onset(shown)}  ", *_spark(shown, 16)]
    what = headline(run) if alone or not folds else f"{clean(folds[0].first.code)} {place(folds[0])}"
    page.add("", (clean(run.name), "bold"), "  ", what, *change, mark="- ", lines=2 if alone else 1)


def _names(page: _Page, runs: Iterable[RunReport]) -> list[Words]:
    """Names of runs with the step of their root finding, as many as fit in two lines; all of those not judged."""
    named = list(runs)
    keep = page.verbose or all(r.verdict == "not-judged" for r in named)
    room = 10**9 if keep else 2 * (page.width - _LABEL - 4) - 40
    words: list[str] = []
    for run in named:
        step = onset(run) if run.verdict in ("failed", "suspect") else None
        words.append(clean(run.name, 80) + (f"@{step}" if step is not None else ""))
        room -= len(words[-1]) + 2
        if room < 0 and len(words) < len(named):
            return [", ".join(words), (f" and {len(named) - len(words):,} more", "dim")]
    return [", ".join(words)]
