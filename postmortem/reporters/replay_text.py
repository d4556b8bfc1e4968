"""A culprit in words: the whole answer of a replay, and the few sentences that the report of a run shows."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import shown
from postmortem.reporters.shared.words import squeezed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.culprit import Culprit, ReplayResult

_SAMPLES = 20  # shown at most


def culprit_lines(c: Culprit | None) -> list[str]:
    """At most four sentences: operator, line, samples, the fixes that cured the step; none without a replay."""
    if c is None:
        return []
    if c.phase == "none":
        return [f"none: {c.how[-1] if c.how else c.cause}"]
    step = f" at step {c.step}" if c.step is not None else ""
    lines = [f"{c.cause}{step}: {_place(c)}".removesuffix(": ")]
    if c.file and c.line:
        lines.append(f"{c.file}:{c.line}: {(c.code or '').strip()}")
    if c.samples:
        lines.append(f"samples of the batch: {_first_samples(c.samples)}{', …' if len(c.samples) > _SAMPLES else ''}")
    cures = [fix.name for fix in c.fixes if fix.cured]
    lines.append(f"cured by {', '.join(cures)}" if cures else "none of the fixes tried cured it")
    return [squeezed(line, 300) for line in lines]


def replay_lines(result: ReplayResult, width: int = 100) -> Iterator[str]:
    """The whole answer of a replay. Prose is wrapped at `width` columns, code and paths are not."""
    c = result.culprit

    def prose(*lines: str) -> Iterator[str]:
        for line in lines:
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            yield from textwrap.wrap(
                line, max(width, 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            ) or [""]

    where = "" if result.step is None else f", step {result.step}"
    yield f"Replay of {result.target}{where}, from {shown(Path(result.checkpoint))} ({result.seconds:.1f} s)"
    yield ""
    if result.fidelity.compared and not result.fidelity.ok and c.phase != "none":
        yield "The replay does not follow the log (below): what follows is a lead, not the answer."
    yield from prose(*_verdict(c))
    yield from _source(c)
    yield from prose(*_details(c))
    yield from _fixes(c)
    if result.next:
        yield ""
        yield "What to do, the best established first:"
        yield from (
            f"  {i}. {line.replace(c.file, _short(c.file)) if c.file else line}"
            for i, line in enumerate(result.next, 1)
        )
    yield ""
    trust = "good" if result.fidelity.ok else "NOT GOOD" if result.fidelity.compared else "unknown"
    yield from prose(f"Fidelity: {trust}. {result.fidelity.note}")
    yield from prose(*(f"Repro: {note}" for note in result.notes))
    yield "How this was established:"
    yield from prose(*(f"  - {line}" for line in c.how if line != result.fidelity.note))
    yield "What the checkpoint gave:"
    yield from prose(*(f"  + {line}" for line in result.fitted), *(f"  - {line}" for line in result.unfitted))


_CAUSES = {
    "bad-input": "the batch holds values that the step cannot take",
    "bad-parameter": "the state was bad before the step",
    "forward-op": "an operator of the forward pass",
    "backward-singularity": "an operator whose derivative is not finite there",
    "dtype-overflow": "a number too large for its precision",
    "loss-scale": "the loss scale is too large",
    "optimizer-update": "the optimizer's update",
    "divergence": "the training diverged: the updates are too large",
    "layout": "a gradient laid out otherwise than its parameter",
    "transient": "a fault that did not come back: the hardware, or a race",
    "none": "nothing found",
}


def _verdict(c: Culprit) -> Iterator[str]:
    if c.phase == "none" and c.cause == "none":
        yield f"No culprit: {c.how[-1] if c.how else 'every step stayed finite'}."
        return
    yield f"Culprit: {_CAUSES[c.cause]} ({c.cause}, phase {c.phase}, {c.established})"
    if place := _place(c):
        yield f"  {place}"


def _place(c: Culprit) -> str:
    """Operator, module and parameter, as far as they are known."""
    module = "" if c.module is None else f"module {c.module}" if c.module else "in no submodule"
    place = [f"operator {c.op}" if c.op else "", module, f"parameter {c.param}" if c.param else ""]
    return ", ".join(p for p in place if p)


def _first_samples(samples: tuple[int, ...]) -> str:
    return ", ".join(map(str, samples[:_SAMPLES]))


def _source(c: Culprit) -> Iterator[str]:
    """The line at fault with two lines around it."""
    if not c.file or not c.line:
        return
    yield f"  {_short(c.file)}:{c.line}"
    for number in range(max(1, c.line - 2), c.line + 3):
        line = linecache.getline(c.file, number).rstrip()
        if line or number == c.line:
            yield f"  {'>' if number == c.line else ' '} {number:5d} | {line or c.code or ''}"


def _short(path: str) -> str:
    """The path as seen from the working directory, where it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _details(c: Culprit) -> Iterator[str]:
    if c.samples:
        more = f" and {len(c.samples) - _SAMPLES} more" if len(c.samples) > _SAMPLES else ""
        yield f"  samples of the batch: {_first_samples(c.samples)}{more}"
    yield from _statistics(c.tensor)
    if c.precision_only is not None:
        yield f"  in double precision it {'is gone' if c.precision_only else 'happens as well'}"


def _statistics(tensor: dict[str, Any]) -> Iterator[str]:
    """One line per tensor at the operator; whatever else is known on a line of its own."""
    inputs = [(f"input {i}", stats) for i, stats in enumerate(tensor.get("inputs") or ())]
    other = {k: v for k, v in tensor.items() if k not in ("inputs", "output")}
    for name, stats in [*inputs, ("output", tensor.get("output")), ("values", other)]:
        if stats:
            yield f"  {name}: {', '.join(f'{k} {_number(v)}' for k, v in stats.items() if v is not None)}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_number(v) for v in value) + "]"
    return str(value)


def _fixes(c: Culprit) -> Iterator[str]:
    if not c.fixes:
        return
    yield ""
    yield "Fixes that were tried on it:"
    tried = [(f.name, f.cured, f.how) for f in c.fixes]
    tried += [("fresh state", c.fresh_state, "the optimizer's state forgotten")] if c.fresh_state is not None else []
    width = max(len(name) for name, *_ in tried)
    for name, cured, how in sorted(tried, key=lambda row: not row[1]):
        yield f"  {'cures   ' if cured else 'no      '} {name:{width}}  {how}"
    if c.suggestion:
        yield ""
        yield "A change of that line that cured the step:"
        diff = c.suggestion.replace(c.file, _short(c.file)) if c.file else c.suggestion
        yield from (f"  {line}" for line in diff.splitlines())
