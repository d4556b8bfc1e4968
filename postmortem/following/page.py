"""The page of a run that is served: plain HTML without scripts, which loads itself again."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.histories import LEVELS
from postmortem.following.service import shown
from postmortem.reporters.html.fragment import fragment
from postmortem.reporters.html.parts import collapsed, escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.report import RunReport
    from postmortem.following.service import Last

_SECONDS = 10  # between two loads
_ROLES = ("loss", "val_loss", "grad_norm", "lr", "loss_scale")
_STYLE = """
body{margin:1.5rem;font:14px/1.45 system-ui,sans-serif;color-scheme:light}
form{display:inline-block;margin:0 1rem .5rem 0}
"""


def page(
    report: RunReport | None, last: Sequence[Last], level: dict[str, Any], history: dict[str, Any] | None, token: str
) -> str:
    """The whole document. history: as in the summary; token: for the links and forms of the page."""
    title = escaped(report.name) if report is not None else "postmortem"
    body = fragment(report) if report is not None else "<p>The files of the run are gone.</p>"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f'<meta http-equiv="refresh" content="{_SECONDS}"><title>{title}</title><style>{_STYLE}</style></head><body>',
        body,
        f'<div class="pm"><h3>Last values</h3>{_values(last)}',
        f"<h3>Watch</h3>{_watch(level, history, token)}",
        f'<p class="dim"><a href="/summary?token={escape(token)}">as JSON</a></p></div></body></html>\n',
    ]
    return "\n".join(parts)


def _values(last: Sequence[Last]) -> str:
    first = [v for role in _ROLES for v in last if v.role == role]
    others = [v for v in last if v.role not in _ROLES]
    more = collapsed(f"{len(others)} other series", _table(others)) if others else ""
    return _table(first or others[:10]) + more


def _table(values: Sequence[Last]) -> str:
    if not values:
        return "<p>none yet</p>"
    rows = []
    for v in values:
        rank = f" · rank {v.rank}" if v.rank is not None else ""
        step = "" if v.step is None else f"{v.step}"
        cells = f'<td>{escaped(v.tag, 120)}{rank}</td><td class="n">{step}</td><td class="n">{shown(v.value)}</td>'
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><tr><th>series</th><th>step</th><th>value</th></tr>{''.join(rows)}</table>"


def _watch(level: dict[str, Any], history: dict[str, Any] | None, token: str) -> str:
    if history is None:
        return "<p>No history of a watch: <code>postmortem run -- COMMAND</code> keeps one.</p>"
    told = "".join(
        f"<li>{_rank(w)}level {escaped(w.get('level'))}{', ended' if 'ended' in w else ''}</li>"
        for w in level["watches"]
    )
    wanted = level["wanted"] or next((w.get("level") for w in level["watches"]), None)
    options = "".join(f"<option{' selected' if word == wanted else ''}>{word}</option>" for word in LEVELS)
    hidden = f'<input type="hidden" name="token" value="{escape(token)}">'
    size = sum(f["bytes"] for f in history["files"])
    return (
        f"<ul>{told}</ul>"
        f'<form method="post" action="/level">{hidden}<select name="level">{options}</select>'
        f"<button>Set level</button></form>"
        f'<form method="post" action="/history/clear">{hidden}'
        f"<button>Clear the history ({size:,} bytes)</button></form>"
        f'<p class="dim"><code>{escaped(history["path"])}</code></p>'
    )


def _rank(watch: dict[str, Any]) -> str:
    return f"rank {watch['rank']}: " if isinstance(watch.get("rank"), int) else ""
