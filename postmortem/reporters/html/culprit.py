"""What a replay found, as HTML: the line, how surely it is known, the fixes that were tried, the tensors there."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from postmortem.reporters.html.parts import collapsed, escaped, items, verdict_tag
from postmortem.reporters.shared.culprit_words import (
    CAUSES,
    ESTABLISHED,
    fidelity_words,
    found,
    from_run,
    leads,
    source_lines,
    statistics,
    suggested,
    tried,
    where,
)

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.core.report import RunReport

_SAMPLES = 200  # shown at most


def culprit_html(run: RunReport) -> str:
    """The culprit of a run; empty where it was not replayed."""
    c = run.culprit
    if c is None:
        return ""
    if not found(c):
        none = f"<p>The replay found no culprit: {escaped(c.how[-1] if c.how else c.cause)}</p>"
        return _section("Replay", none + _surely(c) + collapsed("How it was replayed", items("", _how(c))))
    title = "Culprit" if leads(run) else "A lead, not established: what failed in the replay"
    parts = [_lead(c, run), _source(c), _surely(c), _fixes(c)]
    if c.suggestion:
        diff = c.suggestion.replace(c.file, from_run(c.file, run)) if c.file else c.suggestion
        parts.append(f"<h4>{suggested(c)}</h4><pre>{escape(diff[:4000])}</pre>")
    tensors = [f"{escaped(name)}: {escaped(values)}" for name, values in statistics(c.tensor)]
    parts.append(
        collapsed("Tensors there, and how it was established", items("Tensors", tensors) + items("How", _how(c)))
    )
    return _section(title, "".join(parts))


def _section(title: str, body: str) -> str:
    return f'<section class="culprit"><h3>{title}</h3>{body}</section>'


def _how(c: Culprit) -> list[str]:
    return [escaped(line) for line in c.how]


def _lead(c: Culprit, run: RunReport) -> str:
    """File and line, operator, step, samples; below them what the cause means."""
    place = [f"<code>{escaped(from_run(c.file, run))}:{c.line}</code>"] if c.file and c.line else []
    place += [escaped(where(c))] if where(c) else []
    place += [f"step {c.step}"] if c.step is not None else []
    if c.samples:
        more = ", …" if len(c.samples) > _SAMPLES else ""
        listed = ", ".join(map(str, c.samples[:_SAMPLES])) + more
        place.append(f"{'sample' if len(c.samples) == 1 else 'samples'} {listed} of the batch")
    means = CAUSES.get(c.cause, "")
    meaning = f"{escaped(c.cause)}: {means}" if means else escaped(c.cause)
    in_double = {True: "; it does not fail in double precision", False: "; it also fails in double precision", None: ""}
    return f'<p class="lead">{" · ".join(place)}</p><p>{meaning}{in_double[c.precision_only]}</p>'


def _source(c: Culprit) -> str:
    rows = [
        f'<span class="line{" at" if n == c.line else ""}"><span class="dim">{n:>5}</span>  {_code(text)}</span>'
        for n, text in source_lines(c)
    ]
    return f'<pre class="log source">{"".join(rows)}</pre>' if rows else ""


def _code(text: str) -> str:
    return " " * (len(text) - len(text.lstrip())) + escaped(text)


def _surely(c: Culprit) -> str:
    """How the culprit was established and how closely the replay followed the log."""
    facts = [("Established", escaped(ESTABLISHED[c.established]))] if found(c) else []
    if c.fidelity is not None:
        facts.append(("Fidelity of the replay", escaped(fidelity_words(c.fidelity), 1500)))
        facts += [("May differ because", escaped("; ".join(c.fidelity.reasons), 1500))] if c.fidelity.reasons else []
    cells = "".join(f"<div><dt>{name}</dt><dd>{words}</dd></div>" for name, words in facts)
    return f'<dl class="surely">{cells}</dl>' if facts else ""


def _fixes(c: Culprit) -> str:
    rows = "".join(
        f"<tr><td>{verdict_tag(outcome)}</td><td><code>{escaped(name)}</code></td><td>{escaped(how, 600)}</td></tr>\n"
        for name, outcome, how in tried(c)
    )
    head = "<thead><tr><th>result</th><th>fix</th><th>what was changed, and the loss then</th></tr></thead>"
    return f'<h4>Fixes tried on this step</h4><table class="fixes">{head}<tbody>{rows}</tbody></table>' if rows else ""
