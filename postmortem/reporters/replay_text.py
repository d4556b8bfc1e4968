"""The text output of a replay, and the few lines about its culprit in the report of a run."""

from __future__ import annotations

import linecache
import shlex
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import shown
from postmortem.core.printable import number
from postmortem.reporters.shared.words import squeezed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.core.culprit import Culprit, Fix, Raised, ReplayResult

_SAMPLES = 20  # shown at most


def culprit_lines(c: Culprit | None) -> list[str]:
    """At most four lines: operator, source line, samples, the fixes that cure the step; none without a replay."""
    if c is None:
        return []
    if c.phase == "none":
        return [f"none: {c.how[-1] if c.how else c.cause}"]
    step = f" at step {c.step}" if c.step is not None else ""
    lines = [f"{c.cause}{step}: {_place(c)}".removesuffix(": ")]
    if c.file and c.line:
        lines.append(f"{c.file}:{c.line}: {(c.code or '').strip()}")
    if c.samples:
        more = ", …" if len(c.samples) > _SAMPLES else ""
        lines.append(f"samples at fault (batch indices): {_first_samples(c.samples)}{more}")
    cures, finite = [f.name for f in c.fixes if f.good], [f.name for f in c.fixes if f.cured]
    beyond = f"finite with {', '.join(finite)}, with a loss far from its course" if finite else ""
    lines.append(f"cured by {', '.join(cures)}" if cures else beyond or "no fix that was tried cures it")
    return [squeezed(line, 300) for line in lines]


def replay_lines(result: ReplayResult, width: int = 100) -> Iterator[str]:
    """The text output of a replay. Prose is wrapped at `width` columns, code and paths are not."""
    c = result.culprit
    prose = partial(_wrapped, width)
    yield from prose(_headline(result))
    yield ""
    if result.raised is not None:
        yield from prose(raised_line(result.raised))
        yield ""
    if result.fidelity.compared and not result.fidelity.ok and c.phase != "none":
        yield "The replayed losses do not match the log (see Fidelity below): this culprit is a lead, not established."
    if result.command and not result.fidelity.ok and not result.fidelity.compared and c.phase != "none":
        yield from prose(
            "The rerun could not be compared with the log: this is what failed in the rerun. That the run failed by it "
            "was not checked."
        )
    yield from _culprit(c, width)
    if result.next:
        yield ""
        yield "What to do, best established first:"
        yield from (
            f"  {i}. {line.replace(c.file, _short(c.file)) if c.file else line}"
            for i, line in enumerate(result.next, 1)
        )
    yield ""
    yield from prose(_fidelity(result))
    if result.fidelity.reasons:
        yield "Likely reasons, in this order:"
        yield from prose(*(f"  {i}. {reason}" for i, reason in enumerate(result.fidelity.reasons, 1)))
    yield from prose(*(f"Repro: {note}" for note in result.notes))
    yield from _how(tuple(line for line in c.how if line != result.fidelity.note), width)
    for heading, parts in (("Loaded from the checkpoint:", result.fitted), ("Not loaded:", result.unfitted)):
        if parts:
            yield heading
            yield from prose(*(f"  - {line}" for line in parts))


def capture_lines(result: ReplayResult) -> list[str]:
    """One line for each capture that a watched program left, with the command that goes back to it."""
    lines = []
    for capture in result.captures:
        if "path" not in capture:
            lines.append(f"no capture was written: {capture['error']}")
            continue
        size, path = capture["bytes"] / 1e6, _short(capture["path"])
        again = f"postmortem replay {shlex.quote(path)} -- {shlex.join(result.command)}"
        lines.append(f"optimizer step {capture['tick']} is captured ({size:.1f} MB), to repeat it: {again}")
        lines += [f"not in the capture: {what}" for what in capture["unstored"]]
    return lines


def _headline(result: ReplayResult) -> str:
    where = "" if result.step is None else f", step {result.step}"
    if not result.command:
        start = "from the recipe's initial state"
        if result.checkpoint:
            start = f"from checkpoint {shown(Path(result.checkpoint))}"
        return f"Replay of {result.target}{where}, {start} ({result.seconds:.1f} s)"
    where += "" if result.tick is None else f" (optimizer step {result.tick} of the command, counted from 0)"
    where += "" if result.rank is None else f", rank {result.rank}"
    what = "Replay" if result.protection else "Watch"
    return f"{what} of {result.target}{where}, by `{shlex.join(result.command)}` ({result.seconds:.1f} s)"


def _fidelity(result: ReplayResult) -> str:
    if result.command and not result.protection and result.fidelity.ok and not result.fidelity.compared:
        return f"Fidelity: {result.fidelity.note}"  # nothing was rerun
    trust = "good" if result.fidelity.ok else "POOR" if result.fidelity.compared else "unknown"
    return f"Fidelity: {trust}. {result.fidelity.note}"


def raised_line(raised: Raised) -> str:
    """The exception of the user's program in one sentence."""
    place = f" ({_short(raised.file)}:{raised.line})" if raised.file else ""
    message = f": {squeezed(raised.message, 300)}" if raised.message else ""
    return f"the program raised {raised.type}{message}{place}"


def culprit_text(c: Culprit, width: int = 100) -> Iterator[str]:
    """The text of a culprit without a replay: where it is, the fixes that were tried, how it was established."""
    yield from _culprit(c, width)
    yield ""
    yield from _how(c.how, width)


def _culprit(c: Culprit, width: int) -> Iterator[str]:
    yield from _wrapped(width, *_verdict(c))
    yield from _source(c)
    yield from _wrapped(width, *_details(c))
    yield from _fixes(c)


def _how(how: Iterable[str], width: int) -> Iterator[str]:
    yield "How this was established:"
    yield from _wrapped(width, *(f"  - {line}" for line in how))


def _wrapped(width: int, *lines: str) -> Iterator[str]:
    """The lines, each wrapped at `width` columns."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from textwrap.wrap(
            line, max(width, 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]


_CAUSES = {
    "bad-input": "the batch contains values that the step cannot handle",
    "bad-parameter": "the model or optimizer state was non-finite before the step",
    "forward-op": "an operator in the forward pass",
    "backward-singularity": "an operator whose derivative is non-finite for this input",
    "dtype-overflow": "a value too large for its dtype",
    "loss-scale": "the loss scale is too large",
    "optimizer-update": "the optimizer update",
    "divergence": "the training diverged: the updates are too large",
    "layout": "a gradient whose strides differ from those of its parameter",
    "transient": "a failure that did not recur: a hardware fault or a race condition",
    "outlier-sample": "samples of one batch carry the rise",
    "exploding-layer": "one layer whose gain grows out of its course",
    "dead-layer": "a layer that does not learn",
    "learning-rate-zero": "the learning rate is zero",
    "none": "nothing found",
}


def _verdict(c: Culprit) -> Iterator[str]:
    if c.phase == "none" and c.cause == "none":
        yield f"No culprit: {c.how[-1] if c.how else 'every step stayed finite'}."
        return
    yield f"Culprit: {_CAUSES[c.cause]} (cause: {c.cause}, phase: {c.phase}, established: {c.established})"
    if place := _place(c):
        yield f"  {place}"


def _place(c: Culprit) -> str:
    """Operator, module and parameter, as far as they are known."""
    module = "" if c.module is None else f"module {c.module}" if c.module else "outside any submodule"
    place = [f"operator {c.op}" if c.op else "", module, f"parameter {c.param}" if c.param else ""]
    return ", ".join(p for p in place if p)


def _first_samples(samples: tuple[int, ...]) -> str:
    return ", ".join(map(str, samples[:_SAMPLES]))


def _source(c: Culprit) -> Iterator[str]:
    """The line at fault, with two lines before and after it."""
    if not c.file or not c.line:
        return
    yield f"  {_short(c.file)}:{c.line}"
    for nth in range(max(1, c.line - 2), c.line + 3):
        line = linecache.getline(c.file, nth).rstrip()
        if line or nth == c.line:
            yield f"  {'>' if nth == c.line else ' '} {nth:5d} | {line or c.code or ''}"


def _short(path: str) -> str:
    """The path relative to the working directory, if it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _details(c: Culprit) -> Iterator[str]:
    if c.samples:
        more = f" and {len(c.samples) - _SAMPLES} more" if len(c.samples) > _SAMPLES else ""
        yield f"  samples at fault (batch indices): {_first_samples(c.samples)}{more}"
    yield from _statistics(c.tensor)
    if c.precision_only is not None:
        yield f"  {'does not fail' if c.precision_only else 'also fails'} in double precision (fp64)"


def _statistics(tensor: dict[str, Any]) -> Iterator[str]:
    """One line per tensor at the operator, and one for all other values."""
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


def _loss_with(fix: Fix) -> str:
    away = f", far from its course (about {number(fix.far_from)} before)" if fix.far_from is not None else ""
    return f"; its loss is then {number(fix.loss)}{away}" if fix.cured and fix.loss is not None else ""


def _outcome(fix: Fix) -> str:
    return "cures" if fix.good else "finite" if fix.cured else "no"


def _fixes(c: Culprit) -> Iterator[str]:
    if not c.fixes:
        return
    yield ""
    yield "Fixes tried:"
    tried = [(f.name, _outcome(f), f.how + _loss_with(f)) for f in c.fixes]
    if c.fresh_state is not None:
        tried.append(("fresh state", "cures" if c.fresh_state else "no", "optimizer state reset"))
    width = max(len(name) for name, *_ in tried)
    for name, outcome, how in sorted(tried, key=lambda row: ("cures", "finite", "no").index(row[1])):
        yield f"  {outcome:8} {name:{width}}  {how}"
    if c.suggestion:
        yield ""
        away = any(f.name == "eps" and f.far_from is not None for f in c.fixes)
        beyond = ", but not one that keeps the loss on its course" if away else ""
        yield f"A change of this line that makes the step finite{beyond}:"
        diff = c.suggestion.replace(c.file, _short(c.file)) if c.file else c.suggestion
        yield from (f"  {line}" for line in diff.splitlines())
