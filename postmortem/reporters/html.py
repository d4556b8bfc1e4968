"""One self-contained page with inline SVG curves: no scripts, no external files, light and dark colour schemes."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

from postmortem.core.model import json_value
from postmortem.core.printable import number
from postmortem.core.report import Report, RunReport
from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.replay_text import culprit_lines
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
    onset,
    problem_line,
    problem_lists,
    totals,
    triage,
    unchecked,
    with_commands,
)
from postmortem.reporters.shared.svg import curve
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postmortem.core.model import Diagnosis, Event, Finding
    from postmortem.core.report import Around
    from postmortem.reporters.shared.outline import Fold, Group

_MOST = 200  # entries of one list; the JSON has all

STYLE = """
.pm{font:14px/1.45 system-ui,sans-serif;max-width:70rem}
.pm code,.pm pre,.pm .n{font-family:ui-monospace,monospace;font-size:.93em;overflow-wrap:anywhere;white-space:pre-wrap}
.pm h1{font-size:1.3em}.pm h2{font-size:1.15em;margin:0}.pm h3{font-size:1em;margin:1em 0 .2em}
.pm table{border-collapse:collapse;font:inherit}\
.pm td,.pm th{text-align:left;vertical-align:top;padding:.2em .9em .2em 0;background:none}
.pm tr{background:none}.pm .n{text-align:right}
.pm .run{border-top:1px solid #8886;padding:.8em 0}.pm summary{cursor:pointer}.pm summary h2{display:inline}
.pm ul{margin:.2em 0;padding-left:1.3em}.pm pre{margin:.2em 0;padding:.4em .6em;background:#8882;border-radius:4px}
.pm .tag{border-radius:3px;padding:0 .45em;color:#fff;font-size:.85em;font-weight:600;white-space:nowrap}
.pm .failed,.pm .error{background:#d33}.pm .suspect,.pm .warning{background:#a56a00}
.pm .healthy{background:#2a8a3e}.pm .not-judged,.pm .info{background:#767676}
.pm .dim{opacity:.75}.pm svg{vertical-align:middle;max-width:100%}.pm td code{display:inline-block;min-width:6em}
@media(max-width:40rem){.pm table{display:block;overflow-x:auto}}
""".strip()


@reporter("html")
def render(report: Report, options: RenderOptions) -> str:
    """One self-contained page for a browser, offline: triage, curves, findings and evidence of every run."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    title = f"postmortem: {totals(report)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{_e(title)}</title>"
        "<style>body{margin:2rem auto;padding:0 1rem;max-width:70rem}</style></head>"
        f"<body>\n{fragment(report)}\n</body></html>\n"
    )


def fragment(what: Report | RunReport | Finding | str) -> str:
    """An HTML fragment without scripts, for notebooks. Text is shown unchanged."""
    if isinstance(what, Report):
        body = _report(what)
    elif isinstance(what, RunReport):
        body = _run(what, f"<h2>{_verdict(what.verdict)} {_e(what.name)}: {_e(headline(what))}</h2>")
    elif isinstance(what, str):
        body = f"<pre>{escape(what)}</pre>"
    else:
        body = _finding(what)
    return f'<div class="pm"><style>{STYLE}</style>\n{body}</div>'


def _e(text: object, limit: int = 0) -> str:
    return escape(clean(text, limit))


def _verdict(verdict: str) -> str:
    return f'<span class="tag {verdict}">{verdict.replace("-", " ")}</span>'


# --- many runs


def _report(report: Report) -> str:
    groups = triage(report)
    order = [run for group in groups for run in group.runs]
    anchors = {id(run): f"run-{i}" for i, run in enumerate(order)}
    parts = [f"<h1>{_e(totals(report))}</h1>"]
    if len(order) > 1:
        parts.append("<table>" + "".join(_group(group, anchors) for group in groups) + "</table>")
    first_of_cause = {id(group.runs[0]) for group in groups[:10] if group.verdict in ("failed", "suspect")}
    for run in order:
        summary = f"<summary><h2>{_verdict(run.verdict)} {_e(run.name)}</h2> <span>{_e(headline(run))}</span></summary>"
        opened = " open" if id(run) in first_of_cause or len(order) == 1 else ""
        parts.append(f'<details class="run" id="{anchors[id(run)]}"{opened}>{summary}{_run(run)}</details>')
    parts.append(_items("Not read", [_e(problem_line(p)) for p in report.problems]))
    parts.append(f'<p class="dim">postmortem {_e(report.version)}</p>')
    return "\n".join(parts)


def _group(group: Group, anchors: dict[int, str]) -> str:
    links = [f'<a href="#{anchors[id(r)]}">{_e(r.name)}</a>{_at(r)}' for r in group.runs]
    shown = links
    if len(links) > 12:
        rest = f"<details><summary>{len(links) - 8} more</summary>{', '.join(links[8:])}</details>"
        shown = [*links[:8], rest]
    cells = (
        _verdict(group.verdict),
        f"<b>{_e(group.cause)}</b>",
        f"{len(links)}\N{MULTIPLICATION SIGN}",
        ", ".join(shown),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"


def _at(run: RunReport) -> str:
    step = onset(run) if run.verdict in ("failed", "suspect") else None
    return "" if step is None else f' <span class="dim">@{step}</span>'


# --- one run


def _run(run: RunReport, head: str = "") -> str:
    parts = [head, f'<p class="dim"><code>{_e(run.path)}</code><br>{_e(about(run))}</p>']
    diagnosis = run.diagnosis
    if diagnosis:
        claim = CLAIMS[diagnosis.strength]
        parts.append(f"<p>{claim}: <b>{_e(diagnosis.name)}</b>. {_e(diagnosis.summary)}</p>")
    parts.append(_items("Culprit", [_e(line) for line in culprit_lines(run.culprit)]))
    parts.append(_values(run.around))
    parts.append(_items("Findings", [_fold(fold, diagnosis.summary if diagnosis else "") for fold in folded(run)]))
    if diagnosis:
        parts.append(_items("Evidence for", [_e(text) for text in diagnosis.evidence_for]))
        parts.append(_items("Evidence against", [_e(text) for text in diagnosis.evidence_against]))
        parts.append(_items("Would disprove it", [_e(text) for text in diagnosis.disprove]))
        parts.append(_last_good(run, diagnosis))
        parts.append(_items("Next", [_action(a) for a in diagnosis.next]))
    parts.append(_items("Log", [_event(e, run) for e in notable_events(run)]))
    parts += [_items(heading.capitalize(), [_e(p) for p in problems]) for heading, problems in problem_lists(run)]
    rest = _items("Not checked", [_e(reason) for reason in unchecked(run)])
    rest += _items("Notes", [_e(n) for n in run.notes])
    finite = {None: "", True: ": finite", False: ": non-finite"}
    rest += _items("Checkpoints", [f"<code>{_e(c.path)}</code>{finite[c.finite]}" for c in run.checkpoints])
    if rest:
        parts.append(f"<details><summary>Not checked, notes, checkpoints</summary>{rest}</details>")
    return "\n".join(p for p in parts if p)


def _last_good(run: RunReport, diagnosis: Diagnosis) -> str:
    if diagnosis.last_good_step is None and not diagnosis.last_good_checkpoint:
        return ""
    step = "unknown" if diagnosis.last_good_step is None else diagnosis.last_good_step
    saved = no_checkpoint(run)
    if diagnosis.last_good_checkpoint:
        saved = f"checkpoint <code>{_e(diagnosis.last_good_checkpoint)}</code>"
    return f"<p><b>Last good</b>: step {step}, {saved}</p>"


def _values(around: Sequence[Around]) -> str:
    if not around:
        return ""
    rows = "".join(
        f'<tr><td><code>{_e(a.tag, 120)}</code></td><td class="n">{number(a.before)}{_step(a.before_step)}</td>'
        f'<td class="n"><b>{at_onset(a)}</b>{_step(a.at_step if a.at_step != a.before_step else None)}</td>'
        f"<td>{curve(a)}</td></tr>\n"
        for a in around
    )
    return f"<table><tr><th></th><th>before</th><th>at onset</th><th>curve</th></tr>\n{rows}</table>"


def _step(step: int | None) -> str:
    return "" if step is None else f'<br><span class="dim">step {step}</span>'


def _fold(fold: Fold, summary: str) -> str:
    members = ""
    if len(fold.members) > 1:
        messages = _list([_e(f.message, 600) for f in fold.members])
        members = f"<details><summary>all {len(fold.members)}</summary>{messages}</details>"
    elif fold.first.evidence:
        members = f"<details><summary>evidence</summary>{_evidence(fold.first)}</details>"
    consequences = _list([_fold(c, summary) for c in fold.consequences])
    return f"{_code(fold.first)} {_e(describe(fold, summary))}{members}{consequences}"


def _code(finding: Finding) -> str:
    return f'<span class="tag {finding.severity}">{_e(finding.code)}</span> <b>{_e(finding.name)}</b>'


def _evidence(finding: Finding) -> str:
    text = json.dumps(json_value(finding.evidence), indent=1)  # control characters become escapes
    return f"<pre>{escape(text[:20_000])}</pre>"


def _finding(finding: Finding) -> str:
    facts = [
        ("tag", finding.tag),
        ("rank", finding.rank),
        ("step", finding.step),
        ("to step", finding.end_step),
        ("consequence of", finding.because_of),
    ]
    rows = "".join(
        f"<tr><td>{name}</td><td><code>{_e(value)}</code></td></tr>" for name, value in facts if value is not None
    )
    evidence = _evidence(finding) if finding.evidence else ""
    return f"<p>{_code(finding)} {_e(finding.message)}</p><table>{rows}</table>{evidence}"


def _event(event: Event, run: RunReport) -> str:
    kind = f'<span class="tag {event.severity}">{_e(event.kind)}</span>'
    return f'{kind} <code>{_e(event.message, 2000)}</code> <span class="dim">{_e(event_where(event, run))}</span>'


def _action(action: str) -> str:
    words, commands = with_commands(action)
    return _e(words) + "".join(f"<pre>{escape(c)}</pre>" for c in commands)


def _items(title: str, items: Sequence[str]) -> str:
    return f"<h3>{title}</h3>{_list(items)}" if items else ""


def _list(items: Iterable[str]) -> str:
    entries = list(items)
    more = [f'<span class="dim">… {len(entries) - _MOST:,} more</span>'] if len(entries) > _MOST else []
    return "<ul>" + "".join(f"<li>{i}</li>\n" for i in [*entries[:_MOST], *more]) + "</ul>" if entries else ""
