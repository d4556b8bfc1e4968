"""One page for a browser that needs no network: triage, and for each run its charts, findings and evidence.

The charts are drawn by uPlot (https://github.com/leeoniya/uPlot, MIT licence), whose code stands in the page. Its
content security policy lets no other script run and loads nothing, whatever a log says.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from postmortem.core.model import VERDICTS
from postmortem.reporters import RenderOptions, reporter
from postmortem.reporters.html.charts import chart_data, has_chart
from postmortem.reporters.html.fragment import STYLE, fragment, not_read, run_html
from postmortem.reporters.html.parts import code_html, escaped, headline_html, meanings, verdict_tag
from postmortem.reporters.shared.culprit_words import brief, leads
from postmortem.reporters.shared.onset import onset
from postmortem.reporters.shared.outline import cause, folded, totals, worst_first
from postmortem.reporters.shared.words import count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postmortem.core.report import Report, RunReport

__all__ = ["fragment", "render"]

_PARTS = files("postmortem.reporters.html") / "page"
_SCRIPTS = ("common.js", "charts.js", "table.js")
_OPEN = 10  # causes whose first run is shown unfolded
_OVERLAID = 6  # runs in one comparison; more curves cannot be told apart


@reporter("html")
def render(report: Report, options: RenderOptions) -> str:
    """One self-contained page for a browser, offline: triage, charts, findings and evidence of every run."""
    runs = worst_first(report)
    charts = any(map(has_chart, runs))
    script = "\n".join(map(_part, [*(["uPlot.iife.min.js"] if charts else []), *_SCRIPTS]))
    style = f"{_part('uPlot.min.css') if charts else ''}\n{STYLE}\n{_part('page.css')}"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {_source(script)}"
    data = f'<script type="application/json" id="data">{chart_data(runs)}</script>\n' if charts else ""
    codes = json.dumps(meanings(f.code for run in runs for f in run.findings)).replace("<", "\\u003c")
    data += f'<script type="application/json" id="codes">{codes}</script>\n'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escaped(f'postmortem: {totals(report)}')}</title>\n<style>{style}</style></head>\n"
        f'<body class="pm">\n{_body(report, runs, overlay=options.overlay)}\n{data}'
        f"<script>{script}</script></body></html>\n"
    )


def _part(name: str) -> str:
    return (_PARTS / name).read_text("utf-8")


def _source(script: str) -> str:
    """What a content security policy calls this one script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _body(report: Report, runs: Sequence[RunReport], *, overlay: bool) -> str:
    title = f"Postmortem of {runs[0].name}" if len(runs) == 1 else totals(report)
    parts = [f"<header><h1>{escaped(title)}</h1></header>", "<main>"]
    if len(runs) > 1:
        parts.append(_table(runs))
    if overlay and len(runs) > 1:
        parts.append(_overlay(runs))
    first_of_cause: dict[tuple[str, str], int] = {}
    for i, run in enumerate(runs):
        if run.verdict in ("failed", "suspect"):
            first_of_cause.setdefault((run.verdict, cause(run)), i)
    opened = set(list(first_of_cause.values())[:_OPEN])
    for i, run in enumerate(runs):
        parts.append(_section(i, run, opened=i in opened or len(runs) == 1))
    parts += [not_read(report), "</main>", f'<footer class="dim">postmortem {escaped(report.version)}</footer>']
    return "\n".join(parts)


def _section(index: int, run: RunReport, *, opened: bool) -> str:
    title = f"<h2>{verdict_tag(run.verdict)} {escaped(run.name)}</h2>"
    named = f"; {escaped(_culprit(run))}" if leads(run) else ""
    summary = f"<summary>{title} <span>{headline_html(run)}{named}</span></summary>"
    chart = f'<div class="charts" data-run="{index}"></div>' if has_chart(run) else ""
    state = " open" if opened else ""
    return f'<details class="run" id="run-{index}"{state}>{summary}<div>{run_html(run, chart=chart)}</div></details>'


def _table(runs: Sequence[RunReport]) -> str:
    """All runs, grouped by verdict and cause. The script adds sorting and filtering."""
    columns = "".join(f'<th scope="col"{c.attribute}>{c.name}</th>' for c in _COLUMNS)
    rows = []
    for (verdict, name), members in groupby(enumerate(runs), key=lambda e: (e[1].verdict, _group_of(e[1]))):
        group = list(members)
        if len(group) > 1:
            title = f"{verdict_tag(verdict)} <b>{escaped(name or 'nothing wrong found')}</b> {count(len(group), 'run')}"
            rows.append(f'<tr class="group"><th colspan="{len(_COLUMNS)}" scope="colgroup">{title}</th></tr>')
        rows += [_row(i, run) for i, run in group]
    return (
        '<div class="tools" id="tools"></div>\n'
        f'<div class="sheet"><table id="runs"><thead><tr>{columns}</tr></thead>'
        f"<tbody>\n{''.join(rows)}</tbody></table></div>"
    )


def _group_of(run: RunReport) -> str:
    return "" if run.verdict == "healthy" else cause(run)


def _row(index: int, run: RunReport) -> str:
    codes = " ".join(sorted({f"{f.code} {f.name}" for f in run.findings} | {c.cause for c in [run.culprit] if c}))
    keys = f'data-run="{index}" data-verdict="{VERDICTS.index(run.verdict)}" data-codes="{escaped(codes, 400)}"'
    cells = "".join(f"<td{c.attribute}>{c.cell(index, run)}</td>" for c in _COLUMNS)
    return f"<tr {keys}>{cells}</tr>\n"


def _bad(run: RunReport) -> bool:
    return run.verdict in ("failed", "suspect")


def _finding(run: RunReport) -> str:
    folds = folded(run) if _bad(run) else ()
    if not folds:
        return ""
    first = folds[0].first
    return f"{escaped(first.name)} {code_html(first.code)}"


def _culprit(run: RunReport) -> str:
    return brief(run.culprit) if run.culprit is not None and leads(run) else ""


def _step(step: int | None) -> str:
    return "" if step is None else str(step)


class _Column(NamedTuple):
    """A column of the table: what a cell shows, and how it is set; `wide` columns have no place on a phone."""

    name: str
    cell: Callable[[int, RunReport], str]
    kind: str = ""

    @property
    def attribute(self) -> str:
        """As an attribute of HTML."""
        return f' class="{self.kind}"' if self.kind else ""


_COLUMNS = (
    _Column("verdict", lambda _, run: verdict_tag(run.verdict)),
    _Column("run", lambda i, run: f'<a href="#run-{i}">{escaped(run.name, 80)}</a>'),
    _Column("finding", lambda _, run: _finding(run)),
    # a narrow column breaks "train.py:33" after the colon, not between the digits
    _Column("cause", lambda _, run: escaped(_culprit(run) or _group_of(run), 80).replace(":", ":<wbr>")),
    _Column("step", lambda _, run: _step(onset(run) if _bad(run) else None), "n"),
    _Column("last step", lambda _, run: _step(run.last_step), "n wide"),
)


def _overlay(runs: Sequence[RunReport]) -> str:
    """The same charts with the curves of several runs in each."""
    drawn = [i for i, run in enumerate(runs) if has_chart(run)][:_OVERLAID]
    if len(drawn) < 2:
        return ""
    left_out = len(runs) - len(drawn)
    note = f' <span class="dim">{count(left_out, "run")} not drawn</span>' if left_out else ""
    indices = " ".join(map(str, drawn))
    return (
        f'<details class="run" open><summary><h2>Comparison of {count(len(drawn), "run")}</h2>{note}</summary>'
        f'<div><div class="charts" data-run="{indices}"></div></div></details>'
    )
