"""The text output of a replay, and the few lines about its culprit in the report of a run."""

from __future__ import annotations

import re
import shlex
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.checkpoints.find import shown
from postmortem.core.model import GROWTH, RISE
from postmortem.reporters.shared.commands import with_commands
from postmortem.reporters.shared.culprit_words import (
    actions,
    fidelity_words,
    found,
    from_here,
    in_a_word,
    leads,
    outcomes,
    source_lines,
    statistics,
    suggested,
    tried,
    where,
)
from postmortem.reporters.shared.what_happened import CAUSES, happened, incident, is_told
from postmortem.reporters.shared.words import count, squeezed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.core.culprit import Culprit, Raised, ReplayResult
    from postmortem.core.report import RunReport

_SAMPLES = 20  # shown at most
_NO_BREAK = "\0"  # for a space at which a line is not broken


def culprit_lines(c: Culprit | None) -> list[str]:
    """At most five lines: source line, operator, samples, the fixes that cure the step, how surely all this is known.

    None without a replay; one line if the replay found nothing.
    """
    if c is None:
        return []
    if not found(c):
        return [squeezed(f"none: {c.how[-1] if c.how else c.cause}", 300)]
    step = f" at step {c.step}" if c.step is not None else ""
    lines = [f"{from_here(c.file)}:{c.line}: {(c.code or '').strip()}"] if c.file and c.line else []
    lines.append(f"{c.cause}{step}: {where(c)}".removesuffix(": "))
    if c.samples:
        more = ", …" if len(c.samples) > _SAMPLES else ""
        lines.append(f"samples at fault (batch indices): {_first_samples(c.samples)}{more}")
    lines.append(_cures(c))
    lines.append(how_surely(c))
    return [squeezed(line, 300) for line in lines]


def _cures(c: Culprit) -> str:
    fixes = tried(c)
    for words, wanted in (("cured by ", "cures"), ("finite, with a loss far from its course, by ", "finite")):
        helped = [f"{name} ({how})" if how else name for name, outcome, how in fixes if outcome == wanted]
        if helped:
            return words + "; by ".join(helped)
    return f"no cure among {count(len(fixes), 'fix')} tried" if fixes else "no fix was tried"


def how_surely(c: Culprit) -> str:
    """How a culprit was established, and how closely the replay followed the log."""
    if c.fidelity is None:
        return f"established: {in_a_word(c)}"
    lead = (
        "" if c.fidelity.ok else "a lead, not established; " if c.fidelity.compared else "not compared with the log; "
    )
    return f"{lead}established: {in_a_word(c)}; fidelity: {fidelity_words(c.fidelity)}"


def replay_lines(result: ReplayResult, width: int = 100, *, asked: int | None = None) -> Iterator[str]:
    """The text output of a replay. Prose is wrapped at `width` columns, code and paths are not. asked: the step that
    the user requested, which need not be the one that was reached."""
    c = result.culprit
    prose = partial(_wrapped, width)
    yield from prose(_headline(result))
    if asked is not None and result.step not in (None, asked):
        yield from prose(f"Step {asked} was requested, this is about step {result.step} (see below for the reason).")
    yield ""
    if result.raised is not None:
        yield from prose(raised_line(result.raised))
        yield ""
    if result.fidelity.compared and not result.fidelity.ok and c.phase != "none":
        yield "The replayed losses do not match the log (see Fidelity below): this culprit is a lead, not established."
    uncompared = not result.fidelity.ok and not result.fidelity.compared and "checkpoint" not in c.tensor
    if result.command and uncompared and c.phase != "none":
        yield from prose(
            "The rerun could not be compared with the log: this is what failed in the rerun. That the run failed by it "
            "was not checked."
        )
    yield from _culprit(c, width)
    if result.next:
        yield ""
        yield "What to do, in this order:"
        yield from _numbered((a.replace(c.file, from_here(c.file)) if c.file else a for a in result.next), width)
    yield ""
    yield from prose(f"Fidelity: {fidelity_words(result.fidelity)}")
    if result.fidelity.reasons:
        yield "Likely reasons, in this order:"
        yield from prose(*(f"  {i}. {reason}" for i, reason in enumerate(result.fidelity.reasons, 1)))
    yield from prose(*(f"Repro: {note}" for note in result.notes))
    yield from _how(tuple(line for line in c.how if line != result.fidelity.note), width)
    for heading, parts in (("Loaded from the checkpoint:", result.fitted), ("Not loaded:", result.unfitted)):
        if parts:
            yield heading
            yield from prose(*(f"  - {line}" for line in parts))


def replayed_lines(run: RunReport, width: int = 100) -> Iterator[str]:
    """The text output of the replay of a run whose report carries a culprit."""
    c = run.culprit
    if c is None:
        return
    step = "" if c.step is None else f", step {c.step}"
    start = f", from checkpoint {shown(Path(c.fidelity.checkpoint))}" if c.fidelity and c.fidelity.checkpoint else ""
    yield from _wrapped(width, f"Replay of {run.path}{step}{start}")
    yield ""
    yield from _culprit(c, width)
    told = actions(run, from_here)
    if told and leads(run):
        yield ""
        yield "What to do, in this order:"
        yield from _numbered(told, width)
    yield ""
    if c.fidelity is not None:
        yield from _wrapped(width, f"Fidelity: {fidelity_words(c.fidelity)}")
    yield from _how((line for line in c.how if c.fidelity is None or line != c.fidelity.note), width)


def capture_lines(result: ReplayResult) -> list[str]:
    """One line for each capture that a watched program left, with the command that goes back to it."""
    lines = []
    for capture in result.captures:
        if "path" not in capture:
            lines.append(f"no capture was written: {capture['error']}")
            continue
        size, path = capture["bytes"] / 1e6, from_here(capture["path"])
        again = f"postmortem replay {shlex.quote(path)} -- {shlex.join(result.command)}"
        step, tick = capture.get("step"), f"optimizer step {capture['tick']}"
        which = tick if step is None else f"step {step}"
        lines.append(f"{which} is captured ({size:.1f} MB), to repeat it: {again}")
        lines += [f"not in the capture: {what}" for what in capture["unstored"]]
    return lines


def closing_line(result: ReplayResult) -> str | None:
    """What a watched program came to, in one line: its culprit, its exception; None if nothing failed."""
    c = result.culprit
    when = f"optimizer step {result.tick}" if result.step is None else f"step {result.step}"
    if c.phase != "none":
        place = f"{from_here(c.file)}:{c.line}" if c.file else c.module or c.phase
        if (growth := c.tensor.get(GROWTH)) is not None:
            end = f"the first value that is not finite arises at {place} ({c.op or c.cause}), {when}"
            return squeezed(f"culprit: the training diverged: {growth}; {end}", 300)
        return squeezed(f"culprit: {place} ({c.op or c.cause}), {when}", 300)
    if result.raised is not None:
        return raised_line(result.raised)
    if result.tick is None:
        return None
    return squeezed(f"a value is non-finite in {when}, no culprit is named: {c.how[-1] if c.how else c.cause}", 300)


def _headline(result: ReplayResult) -> str:
    where = "" if result.step is None else f", step {result.step}"
    rank = "" if result.rank is None else f", rank {result.rank}"
    rank += "" if result.micro_batch is None else f", micro-batch {result.micro_batch} of the step"
    if not result.command:
        start = "from the recipe's initial state"
        if result.checkpoint:
            start = f"from checkpoint {shown(Path(result.checkpoint))}"
        return f"Replay of {result.target}{where}{rank}, {start} ({result.seconds:.1f} s)"
    where += "" if result.tick is None else f" (optimizer step {result.tick} of the command, counted from 0)"
    where += rank
    what = "Replay" if result.protection else "Watch"
    return f"{what} of {result.target}{where}, by `{shlex.join(result.command)}` ({result.seconds:.1f} s)"


def raised_line(raised: Raised) -> str:
    """The exception of the user's program in one sentence."""
    place = f" ({from_here(raised.file)}:{raised.line})" if raised.file else ""
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
    yield from _fixes(c, width)


def _how(how: Iterable[str], width: int) -> Iterator[str]:
    yield "How this was established:"
    yield from _wrapped(width, *(f"  - {line}" for line in how))


def _numbered(told: Iterable[str], width: int) -> Iterator[str]:
    """What to do: words wrapped, each command in a line of its own, to be copied."""
    for i, action in enumerate(told, 1):
        words, commands = with_commands(action)
        number = f"  {i}. "
        if words:
            yield from _filled(number, words, width)
        for nth, command in enumerate(commands):
            yield f"{number if not words and nth == 0 else ' ' * len(number)}$ {command}"


def _filled(start: str, words: str, width: int) -> Iterator[str]:
    """`words` after `start`, wrapped below their own beginning; what is in backticks stays in one line."""
    solid = re.sub(r"`[^`]*`", lambda m: m[0].replace(" ", _NO_BREAK), words)
    lines = textwrap.wrap(solid, max(width - len(start), 40), break_long_words=False, break_on_hyphens=False) or [""]
    for i, line in enumerate(lines):
        yield (" " * len(start) if i else start) + line.replace(_NO_BREAK, " ")


def _wrapped(width: int, *lines: str) -> Iterator[str]:
    """The lines, each wrapped at `width` columns."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from textwrap.wrap(
            line, max(width, 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]


def _verdict(c: Culprit) -> Iterator[str]:
    if c.phase == "none" and c.cause == "none":
        yield f"No culprit: {c.how[-1] if c.how else 'every step stayed finite'}."
        return
    means = CAUSES.get(c.cause, "a fault of the training code that raises no error")
    means = "the data, or what else the loss is computed from" if RISE in c.tensor else means
    meaning = f"{means} (cause: {c.cause}, phase: {c.phase}, established: {in_a_word(c)})"
    if (growth := c.tensor.get(GROWTH)) is not None:
        yield f"Culprit: the training diverged: {growth}"
        yield f"  the first value that is not finite: {happened(c)}"
        yield f"  {meaning}"
    elif incident(c) is None and "checkpoint" not in c.tensor and not is_told(c):
        yield f"Culprit: {meaning}"
    else:
        yield f"Culprit: {happened(c)}"
        yield f"  {meaning}"
    if place := where(c):
        yield f"  {place}"


def _first_samples(samples: tuple[int, ...]) -> str:
    return ", ".join(map(str, samples[:_SAMPLES]))


def _source(c: Culprit) -> Iterator[str]:
    """The line at fault, with two lines before and after it."""
    lines = source_lines(c)
    if c.file and lines:
        yield f"  {from_here(c.file)}:{c.line}"
    for nth, line in lines:
        yield f"  {'>' if nth == c.line else ' '} {nth:5d} | {line}"


def _details(c: Culprit) -> Iterator[str]:
    if c.samples:
        more = f" and {len(c.samples) - _SAMPLES} more" if len(c.samples) > _SAMPLES else ""
        yield f"  samples at fault (batch indices): {_first_samples(c.samples)}{more}"
    yield from (f"  {name}: {values}" for name, values in statistics(c.tensor))
    if c.precision_only is not None:
        yield f"  {'does not fail' if c.precision_only else 'also fails'} in double precision (fp64)"


def _fixes(c: Culprit, columns: int) -> Iterator[str]:
    if not c.fixes:
        return
    yield ""
    yield "Fixes tried:"
    rows = tried(c)
    width = max(len(name) for name, *_ in rows)
    for name, outcome, how in rows:
        yield from _filled(f"  {outcome:8} {name:{width}}  ", how, columns)
    yield from _wrapped(columns, *(f"  {note}" for note in outcomes(c)))
    if c.suggestion:
        yield ""
        yield f"{suggested(c)}:"
        diff = c.suggestion.replace(c.file, from_here(c.file)) if c.file else c.suggestion
        yield from (f"  {line}" for line in diff.splitlines())
