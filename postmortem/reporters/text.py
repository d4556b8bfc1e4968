"""Text for people at a terminal: one run in full, many runs as a triage page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from postmortem.core.printable import number
from postmortem.core.report import RESUMED
from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.shared.culprit_words import actions, from_here, leads
from postmortem.reporters.shared.outline import (
    CLAIMS,
    about,
    at_onset,
    describe,
    event_facts,
    event_where,
    folded,
    headline,
    no_checkpoint,
    notable_events,
    problem_line,
    problem_lists,
    unchecked,
    worst_first,
)
from postmortem.reporters.shared.words import clean, count, squeezed
from postmortem.reporters.text_page import (
    BRIEF,
    LABEL,
    VERDICT_STYLE,
    Page,
    bullets,
    more_of,
    next_actions,
    shortened,
    spark,
    verdict_words,
)
from postmortem.reporters.triage_text import triage_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.model import Diagnosis
    from postmortem.core.report import Around, Report, RunReport
    from postmortem.reporters.shared.outline import Fold
    from postmortem.reporters.styled import Words

_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_WIDEST_CURVE = 40  # columns


@reporter("text")
def render(report: Report, options: RenderOptions) -> str:
    """Text for people: the report of one run, or a triage page of many, worst first."""
    if len(report.runs) == 1:
        page = Page(options)
        _run(page, report.runs[0])
    else:
        page = triage_page(report, options)
        for run in worst_first(report) if options.verbose else ():
            if run.verdict != "healthy":
                page.blank()
                _run(page, run)
    if report.problems:
        page.blank()
        bullets(page, "not read", [problem_line(p) for p in report.problems], style="magenta")
    return page.text()


def _of_culprit(run: RunReport) -> list[str]:
    """The lines about the culprit of a run that was replayed; what makes them takes a while to import."""
    if run.culprit is None:
        return []
    from postmortem.reporters.replay_text import culprit_lines

    return culprit_lines(run.culprit)


def _run(page: Page, run: RunReport) -> None:
    page.add(verdict_words(run), (clean(run.name), "bold"), " · ", headline(run), style=VERDICT_STYLE[run.verdict])
    page.add("", (" · ".join([clean(run.path), about(run)]), "dim"))
    bad = run.verdict in ("failed", "suspect")
    if bad:
        page.blank()
    diagnosis, folds = run.diagnosis, folded(run)
    told = _of_culprit(run)
    if leads(run):
        _culprit(page, told)
    if diagnosis:
        label, words = ("log alone", "") if leads(run) else ("why", "")
        page.add(label, words, *_claim(diagnosis), clean(diagnosis.summary, 1500 if page.verbose else 450))
    if not leads(run):
        _culprit(page, told)
    if bad or page.verbose:
        _values(page, run.around)
    _findings(page, folds, run)
    if diagnosis:
        bullets(page, "for", [clean(text, 800) for text in diagnosis.evidence_for])
        bullets(page, "against", [clean(text, 800) for text in diagnosis.evidence_against], most=2)
        if not leads(run):
            bullets(page, "unless", [clean(text, 800) for text in diagnosis.disprove], most=2)
        _last_good(page, run)
        next_actions(page, actions(run, from_here))
    elif bad and folds:
        next_actions(page, [f"postmortem explain {folds[0].first.code}"])
    _events(page, run)
    for heading, problems in problem_lists(run):
        bullets(page, heading, problems, style="magenta")
    _not_checked(page, run)
    bullets(page, "notes", [clean(n, 800) for n in run.notes if page.verbose or n.startswith(RESUMED)])


def _culprit(page: Page, lines: Sequence[str]) -> None:
    for i, line in enumerate(lines):
        page.add("culprit" if i == 0 else "", (line, "bold") if i == 0 else line)


def _claim(diagnosis: Diagnosis) -> tuple[Words, ...]:
    """ "Likely cause: out-of-memory. "."""
    return f"{CLAIMS[diagnosis.strength]}: ", (clean(diagnosis.name), "bold"), ". "


def _values(page: Page, around: Sequence[Around]) -> None:
    """A small table: each series before and at the onset, and its curve."""
    if not around:
        return
    steps = {(a.unit, a.before_step, a.at_step) for a in around}
    unit, before, at = next(iter(steps)) if len(steps) == 1 else ("", None, None)
    onset = "at onset" if at is None or at == before else f"{unit} {at}"
    heads = ("", "before" if before is None else f"{unit} {before}", onset)
    rows = [(clean(a.tag), number(a.before), at_onset(a)) for a in around]
    name, left, right = (max(cell_len(row[k]) for row in [heads, *rows]) for k in range(3))
    room = page.width - LABEL - left - right - 6  # for the name and the curve, which share it
    name = min(name, max(room // 2, 8))
    room = min(_WIDEST_CURVE, room - name)
    heading = "  curve" if any(spark(a, room) for a in around) else ""
    page.add("values", (f"{'':{name}}  {heads[1]:>{left}}  {heads[2]:>{right}}{heading}", "dim"), wrap=False)
    for (tag, was, became), a in zip(rows, around, strict=True):
        style = "bold red" if became in ("nan", "inf", "-inf") else "bold"
        tag = shortened(tag, name)
        start = f"{tag}{' ' * (name - cell_len(tag))}  {was:>{left}}  "
        page.add("", start, (f"{became:>{right}}", style), "  ", *spark(a, room), wrap=False)


def _findings(page: Page, folds: Sequence[Fold], run: RunReport) -> None:
    shown = folds if page.verbose else folds[:6]
    for i, fold in enumerate(shown):
        _fold(page, "findings" if i == 0 else "", fold, "● ", run)
        consequences = fold.consequences if page.verbose else fold.consequences[:6]
        for consequence in consequences:
            _fold(page, "", consequence, "  └ ", run)
        more_of(page, len(fold.consequences) - len(consequences), "    ")
    more_of(page, len(folds) - len(shown))


def _fold(page: Page, label: str, fold: Fold, mark: str, run: RunReport) -> None:
    style = _SEVERITY_STYLE[fold.first.severity]
    named = (f"{clean(fold.first.code)} {clean(fold.first.name)}", style)
    page.add(label, named, "  ", describe(fold, run, told=True), mark=(mark, style), lines=0 if page.verbose else 3)
    if page.verbose and len(fold.members) > 1:
        for member in fold.members:
            page.add("", clean(member.message), mark=" " * len(mark) + "· ")


def _last_good(page: Page, run: RunReport) -> None:
    good = run.diagnosis
    if good is None or (good.last_good_step is None and good.last_good_checkpoint is None):
        return
    step = "step unknown" if good.last_good_step is None else f"{run.unit} {good.last_good_step}"
    saved = f"checkpoint {clean(good.last_good_checkpoint)}" if good.last_good_checkpoint else no_checkpoint(run)
    page.add("last good", (step, "bold green"), ", ", saved)


def _events(page: Page, run: RunReport) -> None:
    events = notable_events(run)
    if page.verbose:
        events += [e for e in run.events if e.severity == "info"]
    shown = events if page.verbose else events[:BRIEF]
    for i, event in enumerate(shown):
        style = _SEVERITY_STYLE[event.severity]
        message = squeezed(event.message, 600 if page.verbose else 200)
        words: list[Words] = [(clean(event.kind), style), (f"  {event_where(event, run)}  ", "dim"), message]
        page.add("log" if i == 0 else "", *words, mark="- ", lines=0 if page.verbose else 4)
        for fact in event_facts(event):
            page.add("", (fact, "dim"), mark="  ", lines=0 if page.verbose else 3)
    more_of(page, len(events) - len(shown))


def _not_checked(page: Page, run: RunReport) -> None:
    """Checks that were not done, by reason."""
    reasons = unchecked(run)
    if page.verbose:
        bullets(page, "not checked", reasons)
    elif reasons:
        page.add("not checked", (f"{count(len(run.not_checked), 'check')}: {'; '.join(reasons)}", "dim"), lines=2)
