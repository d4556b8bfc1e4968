"""The report of a run, or of many, as HTML without scripts: for notebooks, and the text of the page."""

from __future__ import annotations

import json
import re
from functools import partial
from html import escape, unescape
from typing import TYPE_CHECKING

from postmortem.core.model import json_value
from postmortem.core.printable import number
from postmortem.core.report import Report, RunReport
from postmortem.reporters.html.culprit import culprit_html, proof_html
from postmortem.reporters.html.parts import (
    breakable,
    code_html,
    collapsed,
    escaped,
    explained_codes,
    headline_html,
    items,
    listing,
    verdict_tag,
)
from postmortem.reporters.shared.commands import with_commands
from postmortem.reporters.shared.culprit_words import actions, from_run, grade, leads
from postmortem.reporters.shared.onset import onset, onset_unit
from postmortem.reporters.shared.outline import (
    CLAIMS,
    about,
    after_step,
    at_line,
    at_onset,
    describe,
    event_where,
    folded,
    no_checkpoint,
    notable_events,
    problem_line,
    problem_lists,
    totals,
    triage,
    unchecked,
)
from postmortem.reporters.shared.panels import panels
from postmortem.reporters.shared.svg import curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.model import Event, Finding
    from postmortem.core.report import Around
    from postmortem.reporters.shared.outline import Fold, Group

STYLE = """
.pm{font:14px/1.45 system-ui,sans-serif;max-width:70rem;overflow-wrap:anywhere}
.pm code,.pm pre,.pm .n{font-family:ui-monospace,monospace;font-size:.93em;overflow-wrap:anywhere;white-space:pre-wrap}
.pm h1{font-size:1.3em}.pm h2{font-size:1.15em;margin:0}.pm h3{font-size:1em;margin:1.3em 0 .3em}
.pm table{border-collapse:collapse;font:inherit}\
.pm td,.pm th{text-align:left;vertical-align:top;padding:.2em .9em .2em 0;background:none}
.pm tr{background:none}.pm .n{text-align:right}
.pm .facts{display:flex;flex-wrap:wrap;gap:.4rem 2.5rem;margin:1em 0}
.pm .facts{padding:.5em .9em;border:1px solid #8885;border-radius:7px}.pm .facts div{min-width:6rem}
.pm .facts dt{color:var(--soft,inherit);font-size:.85em}.pm .facts dd{margin:0;font-weight:600}
.pm .facts dd .dim{font-weight:400;font-size:.85em}
.pm .run{border-top:1px solid #8886;padding:.8em 0}.pm summary{cursor:pointer}.pm summary h2{display:inline}
.pm ul{margin:.2em 0;padding-left:1.3em}.pm pre{margin:.2em 0;padding:.4em .6em;background:#8882;border-radius:6px}
.pm h3 .dim{font-weight:400}.pm .whole{white-space:nowrap}.pm .added{color:#2a8a3e}.pm .removed{color:#d33}
.pm .values td,.pm .fixes td{border-top:1px solid #8884}
.pm .tag{border-radius:99px;padding:.05em .65em;color:#fff;font-size:.85em;font-weight:600;white-space:nowrap}
.pm .failed,.pm .error{background:#d33}.pm .suspect,.pm .warning,.pm .finite{background:#a56a00}
.pm .healthy{background:#2a8a3e}.pm .not-judged,.pm .info{background:#767676}
.pm .cures{background:#2a8a3e}.pm .no{background:#767676}
.pm .culprit{border-left:3px solid #d33;padding:.1em 0 .1em .9em;margin:.8em 0}
.pm h4{font-size:.95em;margin:.8em 0 .2em}
.pm .culprit h3{margin-top:.2em}.pm .culprit p{margin:.3em 0}.pm .lead{font-size:1.1em;font-weight:600}
.pm .surely{margin:.6em 0}.pm .surely dt{color:var(--soft,inherit);font-size:.85em}.pm .surely dd{margin:0 0 .4em}
.pm code span{display:inline-block;max-width:100%;overflow-x:auto}
.pm pre.command{overflow-x:auto}.pm .command span{display:inline-block}
.pm code span,.pm .command span,.pm .fixes td code{white-space:nowrap;vertical-align:bottom}
.pm pre.source{white-space:pre;overflow-x:auto}.pm .source .line{width:max-content;min-width:100%}
.pm abbr[title]{cursor:help;text-decoration:none;border-bottom:1px dotted}
.pm ol{margin:.2em 0;padding-left:1.6em}.pm li{margin:.15em 0}
.pm .log .line{display:block}.pm .log .at{background:#d1242f33}
.pm .dim,.pm abbr{opacity:.75}
.pm svg{vertical-align:middle;max-width:100%}.pm td code{display:inline-block;min-width:6em}
@media(max-width:40rem){.pm table{display:block;overflow-x:auto}.pm table.fixes{display:table}}
""".strip()


def fragment(what: Report | RunReport | Finding | str, chart: str = "") -> str:
    """An HTML fragment without scripts, for notebooks. Text is shown unchanged, with `chart` (SVG) below it.

    A run whose report has a `drawing` shows the curves of the page, as SVG.
    """
    if isinstance(what, Report):
        body = _report(what)
    elif isinstance(what, RunReport):
        body = run_html(
            what,
            chart=panels(what),
            head=f"<h2>{verdict_tag(what.verdict)} {escaped(what.name)}: {headline_html(what)}</h2>",
        )
    elif isinstance(what, str):
        body = f"<pre>{escape(what)}</pre>{chart}"
    else:
        body = _finding(what)
    return f'<div class="pm"><style>{STYLE}</style>\n{explained_codes(body)}</div>'


# --- many runs


def _report(report: Report) -> str:
    groups = triage(report)
    order = [run for group in groups for run in group.runs]
    anchors = {id(run): f"run-{i}" for i, run in enumerate(order)}
    parts = [f"<h1>{escaped(totals(report))}</h1>"]
    if len(order) > 1:
        parts.append("<table>" + "".join(_group(group, anchors) for group in groups) + "</table>")
    first_of_cause = {id(group.runs[0]) for group in groups[:10] if group.verdict in ("failed", "suspect")}
    for run in order:
        title = f"<h2>{verdict_tag(run.verdict)} {escaped(run.name)}</h2>"
        summary = f"<summary>{title} {headline_html(run)}</summary>"
        opened = " open" if id(run) in first_of_cause or len(order) == 1 else ""
        story = run_html(run, chart=panels(run))
        parts.append(f'<details class="run" id="{anchors[id(run)]}"{opened}>{summary}{story}</details>')
    parts.append(not_read(report))
    parts.append(f'<p class="dim">postmortem {escaped(report.version)}</p>')
    return "\n".join(parts)


def not_read(report: Report) -> str:
    """The paths that belong to no run."""
    return items("Not read", [escaped(problem_line(p)) for p in report.problems])


def _group(group: Group, anchors: dict[int, str]) -> str:
    links = [f'<a href="#{anchors[id(r)]}">{escaped(r.name)}</a>{_at(r)}' for r in group.runs]
    shown = links
    if len(links) > 12:
        rest = f"<details><summary>{len(links) - 8} more</summary>{', '.join(links[8:])}</details>"
        shown = [*links[:8], rest]
    cells = (
        verdict_tag(group.verdict),
        f"<b>{escaped(group.cause or 'nothing wrong found')}</b>",
        f"{len(links)}\N{MULTIPLICATION SIGN}",
        ", ".join(shown),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"


def _at(run: RunReport) -> str:
    step = onset(run) if run.verdict in ("failed", "suspect") else None
    unit = "epoch " if onset_unit(run) == "epoch" else ""
    return "" if step is None else f' <span class="dim">@{unit}{step}</span>'


# --- one run


def run_html(run: RunReport, head: str = "", chart: str = "") -> str:
    """The story of one run in reading order: what happened, what to do, the curves, the evidence, what was read.

    `chart` takes the place of the small curves.
    """
    parts = [head, f'<p class="dim about"><code>{escaped(run.path)}</code><br>{escaped(about(run))}</p>']
    if leads(run):
        parts.append(culprit_html(run))
    else:
        parts.append(_claim(run))
    parts += [_facts(run), _next(run)]
    parts += [chart, _values(run.around, curves=not chart, onset=bool(run.findings))]
    parts.append(f'<section class="culprit">{proof_html(run)}</section>' if leads(run) else culprit_html(run))
    parts.append(items("Findings", [_fold(fold, run) for fold in folded(run)]))
    parts.append(_evidence_of(run))
    parts.append(items("Log", [_event(e, run) for e in notable_events(run)]))
    parts += _excerpts(run)
    parts += [items(heading.capitalize(), [escaped(p) for p in problems]) for heading, problems in problem_lists(run)]
    rest = items("Not checked", [escaped(reason) for reason in unchecked(run)])
    rest += items("Notes", [escaped(n) for n in run.notes])
    finite = {None: "", True: ": finite", False: ": non-finite"}
    rest += items("Checkpoints", [f"<code>{escaped(c.path)}</code>{finite[c.finite]}" for c in run.checkpoints])
    parts.append(collapsed("Not checked, notes, checkpoints", rest))
    return "\n".join(p for p in parts if p)


def _claim(run: RunReport) -> str:
    """The diagnosis with its strength."""
    diagnosis = run.diagnosis
    if diagnosis is None:
        return ""
    return f"<p>{CLAIMS[diagnosis.strength]}: <b>{escaped(diagnosis.name)}</b>. {escaped(diagnosis.summary)}</p>"


def _evidence_of(run: RunReport) -> str:
    """What speaks for and against the diagnosis; where a culprit leads, the diagnosis stands here as well."""
    diagnosis = run.diagnosis
    if diagnosis is None:
        return ""
    shown = {f.message: f"{f.code} {f.name}, see Findings" for f in run.findings}
    lists = items("Evidence for", [escaped(shown.get(text, text)) for text in diagnosis.evidence_for])
    lists += items("Evidence against", [escaped(text) for text in diagnosis.evidence_against])
    if leads(run):
        cured = run.culprit is not None and grade(run.culprit)[0] == "cured"
        now = "the culprit above takes its place" if cured else "see the culprit above"
        title = f"From the log alone, without the culprit: {CLAIMS[diagnosis.strength].lower()}; {now}"
        return f'<details class="before"><summary>{title}</summary>{_claim(run)}{lists}</details>'
    return lists + items("Would disprove it", [escaped(text) for text in diagnosis.disprove])


def next_steps(run: RunReport) -> list[str]:
    """What to do next, with a command in any case where something is wrong."""
    steps = actions(run, partial(from_run, run=run))
    folds = folded(run)
    if run.verdict in ("failed", "suspect") and folds and not any(with_commands(step)[1] for step in steps):
        steps.append(f"more about this finding: `postmortem explain {folds[0].first.code}`")
    return steps


def _next(run: RunReport) -> str:
    """What to do next; where there are commands, also where they are typed."""
    steps = [_action(a) for a in next_steps(run)]
    typed = ' <span class="dim">(commands are typed in the folder in which this report was made)</span>'
    has_commands = any('<pre class="command">' in step for step in steps)
    return items(f"What to do next{typed if has_commands else ''}", steps, ordered=True)


def _facts(run: RunReport) -> str:
    """The answers that people look for first, side by side."""
    if run.verdict not in ("failed", "suspect"):
        return ""
    first = onset(run)
    folds = folded(run)
    after = "after " if folds and after_step(run, folds[0].first) else ""
    facts = [("First finding", "–" if first is None else f"{after}{onset_unit(run)} {first}")]
    story = run.diagnosis
    if story and (story.last_good_step is not None or story.last_good_checkpoint):
        step = "unknown" if story.last_good_step is None else f"{run.unit} {story.last_good_step}"
        facts.append(("Last good step", step))
        path = escaped(story.last_good_checkpoint or "").replace("/", "/<wbr>")
        saved = f"<code>{path}</code>{_known_of(run, story.last_good_checkpoint)}" if path else no_checkpoint(run)
        facts.append(("Last good checkpoint", saved))
    facts.append(("End of the log", "no steps" if run.last_step is None else f"{run.unit} {run.last_step}"))
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{cells}</dl>'


def _known_of(run: RunReport, path: str | None) -> str:
    """Step of a checkpoint, and whether its weights are finite, as far as they are known."""
    saved = next((c for c in run.checkpoints if c.path == path), None)
    if saved is None:
        return ""
    known = [f"step {saved.step}"] if saved.step is not None else []
    known += {True: ["weights finite"], False: ["weights not finite"], None: []}[saved.finite]
    return f'<br><span class="dim">{", ".join(known)}</span>' if known else ""


def _log_line(number: int, text: str, *, marked: bool) -> str:
    at = " at" if marked else ""
    return f'<span class="line{at}"><span class="dim">{number:>6}</span>  {escaped(text)}</span>'


def _excerpts(run: RunReport) -> list[str]:
    """The log around the errors; lines that several excerpts have in common stand there once."""
    merged: dict[tuple[str, int], tuple[dict[int, str], set[int]]] = {}
    for one in run.drawing.excerpts if run.drawing else ():
        lines = dict(enumerate(one.lines, one.first))
        key = next((k for k, (known, _) in merged.items() if k[0] == one.file and one.first - 1 in known), None)
        known, marked = merged.setdefault(key or (one.file, one.first), ({}, set()))
        known |= lines
        marked.add(one.at)
    shown = []
    for (file, _), (lines, marked) in merged.items():
        rows = [_log_line(number, text, marked=number in marked) for number, text in sorted(lines.items())]
        where = ", ".join([escaped(at_line(file, min(marked), run=run)), *map(str, sorted(marked)[1:])])
        shown.append(f'<details open><summary>{where}</summary><pre class="log">{"".join(rows)}</pre></details>')
    return shown


def _values(around: Sequence[Around], *, curves: bool, onset: bool) -> str:
    """The values before and at the root finding, or the last ones, in the notebook with a small curve each."""
    if not around:
        return ""
    rows = "".join(
        f'<tr><td><code>{escaped(a.tag, 120)}</code></td><td class="n">{number(a.before)}{_step(a, a.before_step)}</td>'
        f'<td class="n"><b>{at_onset(a)}</b>{_step(a, a.at_step if a.at_step != a.before_step else None)}</td>'
        f"{f'<td>{curve(a)}</td>' if curves else ''}</tr>\n"
        for a in around
    )
    heads = ("", "before", "at onset" if onset else "last", *(["curve"] if curves else []))
    first = "".join(f"<th>{head}</th>" for head in heads)
    return f'<table class="values"><tr>{first}</tr>\n{rows}</table>'


def _step(around: Around, step: int | None) -> str:
    return "" if step is None else f'<br><span class="dim">{around.unit} {step}</span>'


def _fold(fold: Fold, run: RunReport) -> str:
    members = ""
    if len(fold.members) > 1:
        messages = listing([escaped(f.message, 600) for f in fold.members])
        members = f"<details><summary>all {len(fold.members)}</summary>{messages}</details>"
    elif fold.first.evidence:
        members = f"<details><summary>evidence</summary>{_evidence(fold.first)}</details>"
    consequences = listing([_fold(c, run) for c in fold.consequences])
    return f"{_code(fold.first)} {escaped(describe(fold, run, told=True))}{members}{consequences}"


def _code(finding: Finding) -> str:
    name = f'<span class="tag {finding.severity}">{escaped(finding.name)}</span>'
    return f"{name} {code_html(finding.code)}"


def _evidence(finding: Finding) -> str:
    text = json.dumps(json_value(finding.evidence), indent=1)  # control characters become escapes
    return f"<pre>{escape(text[:20_000], quote=False)}</pre>"


def _finding(finding: Finding) -> str:
    facts = [
        ("tag", finding.tag),
        ("rank", finding.rank),
        ("step", finding.step),
        ("to step", finding.end_step),
        ("consequence of", finding.because_of),
    ]
    rows = "".join(
        f"<tr><td>{name}</td><td><code>{escaped(value)}</code></td></tr>" for name, value in facts if value is not None
    )
    evidence = _evidence(finding) if finding.evidence else ""
    return f"<p>{_code(finding)} {escaped(finding.message)}</p><table>{rows}</table>{evidence}"


def _event(event: Event, run: RunReport) -> str:
    kind = f'<span class="tag {event.severity}">{escaped(event.kind)}</span>'
    where = escaped(event_where(event, run))
    return f'{kind} <code>{escaped(event.message, 2000)}</code> <span class="dim">{where}</span>'


def _action(action: str) -> str:
    words, commands = with_commands(action)
    shown = re.sub(r"`([^`]+)`", lambda m: f"<code>{breakable(unescape(m[1]))}</code>", escaped(words))
    return shown + "".join(f'<pre class="command">{breakable(c)}</pre>' for c in commands)
