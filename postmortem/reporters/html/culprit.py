"""What a replay found, as HTML: the line, how surely it is known, the fixes that were tried, the tensors there."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from postmortem.reporters.html.parts import collapsed, escaped, items, verdict_tag
from postmortem.reporters.shared.culprit_words import (
    ESTABLISHED,
    fidelity_words,
    found,
    from_run,
    grade,
    leads,
    outcomes,
    source_lines,
    statistics,
    suggested,
    surely,
    tried,
    where,
)
from postmortem.reporters.shared.what_happened import CAUSES, SHOWN, happened

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit
    from postmortem.core.report import RunReport

_SAMPLES = 200  # shown at most


def culprit_html(run: RunReport) -> str:
    """What failed, and the line; all of it where a report does not begin with it. Empty where it was not replayed."""
    c = run.culprit
    if c is None:
        return ""
    if not found(c):
        none = f"<p>The replay found no culprit: {escaped(c.how[-1] if c.how else c.cause)}</p>"
        return _section("Replay", none + _surely(c) + collapsed("How it was replayed", items("", _how(c))))
    if leads(run):
        sure = f' <span class="dim">{escaped(surely(c))}</span>'
        return _section(f"Culprit{sure}", _lead(c, run) + _source(c))
    return _section("A lead, not established: what failed in the replay", _lead(c, run) + _source(c) + proof_html(run))


def proof_html(run: RunReport) -> str:
    """How surely the culprit is known, the fixes that were tried, and in a fold the numbers behind both."""
    c = run.culprit
    if c is None or not found(c):
        return ""
    parts = [_surely(c), _fixes(c)]
    if c.suggestion:
        diff = c.suggestion.replace(c.file, from_run(c.file, run)) if c.file else c.suggestion
        parts.append(f'<h4>{suggested(c)}</h4><pre class="source">{_diff(diff[:4000])}</pre>')
    tensors = [f"{escaped(name)}: {escaped(values)}" for name, values in statistics(c.tensor)]
    followed = [escaped(fidelity_words(c.fidelity), 1500)] if c.fidelity is not None else []
    named = [escaped(f"cause {c.cause}, phase {c.phase}, established {c.established}")]
    numbers = items("Tensors at the operator", tensors) + items("How it was established", [*_how(c), *followed])
    parts.append(collapsed("Tensors, and how it was established", numbers + items("Its names in the JSON", named)))
    return "".join(parts)


def _section(title: str, body: str) -> str:
    return f'<section class="culprit"><h3>{title}</h3>{body}</section>'


def _how(c: Culprit) -> list[str]:
    note = c.fidelity.note if c.fidelity is not None else None  # stands beside them
    return [escaped(line) for line in c.how if line != note]


def _lead(c: Culprit, run: RunReport) -> str:
    """What happened in one sentence; below it file and line, operator, samples, and what the cause means."""
    said = happened(c)
    place = [f"<code>{escaped(from_run(c.file, run))}:{c.line}</code>"] if c.file and c.line else []
    place += [escaped(where(c))] if where(c) else []
    if c.samples and len(c.samples) > SHOWN:
        more = ", …" if len(c.samples) > _SAMPLES else ""
        place.append(f"samples {', '.join(map(str, c.samples[:_SAMPLES]))}{more} of the batch")
    means = CAUSES.get(c.cause, "")
    meaning = [f"{means[:1].upper()}{means[1:]}"] if means and means not in said else []
    in_double = {
        True: "it does not fail in double precision (fp64)",
        False: "it fails in double precision (fp64) as well, so more digits do not help",
        None: "",
    }
    meaning += [in_double[c.precision_only]] if c.precision_only is not None else []
    note = f"<p>{'; '.join(meaning)}</p>" if meaning else ""
    lead = escaped(said).replace("-inf", '<span class="whole">-inf</span>')
    return f'<p class="lead">{lead}</p><p>{" · ".join(place)}</p>{note}'


def _source(c: Culprit) -> str:
    rows = [
        f'<span class="line{" at" if n == c.line else ""}"><span class="dim">{n:>5}</span>  {_code(text)}</span>'
        for n, text in source_lines(c)
    ]
    return f'<pre class="log source">{"".join(rows)}</pre>' if rows else ""


def _diff(diff: str) -> str:
    """A unified diff; a style can colour its lines."""
    kinds = {"+": "added", "-": "removed"}
    return "\n".join(
        f'<span class="{kinds[line[0]]}">{escape(line)}</span>'
        if line[:1] in kinds and line[:3] not in ("+++", "---")
        else escape(line)
        for line in diff.splitlines()
    )


def _code(text: str) -> str:
    return " " * (len(text) - len(text.lstrip())) + escaped(text)


def _surely(c: Culprit) -> str:
    """How surely the culprit is known, on its scale, and whether the replay followed the log."""
    facts = []
    if found(c):
        grades = list(ESTABLISHED)
        scale = [f"{n}. {words}" for n, words in enumerate(ESTABLISHED.values(), 1)]
        own, words = grade(c)
        of = f'<abbr title="{escaped("; ".join(scale))}">grade {grades.index(own) + 1} of {len(grades)}</abbr>'
        sure = f"{escaped(words)} ({of}, 1 is the surest)"
        others = "; ".join(text for text, name in zip(scale, grades, strict=True) if name != own)
        facts.append(("How sure this is", f'{sure}<br><span class="dim">The others: {escaped(others)}</span>'))
    if c.fidelity is not None:
        f = c.fidelity
        follows = f.ok and (f.compared or not f.note)
        words = "yes (the numbers are in the fold below)" if follows else escaped(fidelity_words(f), 1500)
        words = f"not compared: {words}" if f.ok and not follows else words
        facts.append(("Do the replayed losses match the log?", words))
        facts += [("May differ because", escaped("; ".join(f.reasons), 1500))] if f.reasons else []
    cells = "".join(f"<div><dt>{name}</dt><dd>{words}</dd></div>" for name, words in facts)
    return f'<dl class="surely">{cells}</dl>' if facts else ""


def _fixes(c: Culprit) -> str:
    rows = "".join(
        f"<tr><td>{verdict_tag(outcome)}</td><td>{escaped(how, 600)} "
        f'<code class="dim">{escaped(name)}</code></td></tr>\n'
        for name, outcome, how in tried(c)
    )
    if not rows:
        return ""
    notes = "".join(f'<p class="dim">{escaped(note)}</p>' for note in outcomes(c))
    head = "<thead><tr><th>result</th><th>what was changed, and the loss then</th></tr></thead>"
    return f'<h4>Fixes tried on this step</h4><table class="fixes">{head}<tbody>{rows}</tbody></table>{notes}'
