"""``postmortem replay``: rerun the step at fault and name the culprit."""

from __future__ import annotations

import linecache
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postmortem import api
from postmortem.checkpoints.find import shown
from postmortem.cli._params import PATH, echo_json, own_stdout
from postmortem.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.replay.driver import ReplayResult
    from postmortem.replay.model import Culprit


@click.command()
@click.argument("target", type=PATH)
@click.option("--recipe", metavar="FILE.py[:FUNCTION]", help="How to rebuild a step.  [default: recipe.py in or beside the run]")
@click.option("--step", type=int, help="The step to rerun, as the log counts.  [default: where the run failed]")
@click.option("--checkpoint", type=PATH, help="The weights to start from.  [default: the last good ones before the step]")
@click.option("--device", help="cpu, cuda, cuda:1, …  [default: cuda where there is one]")
@click.option("--fix/--no-fix", default=True, help="Try repairs on the step at fault.  [default: --fix]")
@click.option(
    "--repro",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Write a stand-alone script that shows the fault.",
)
@click.option("--trust", is_flag=True, help="Unpickle whatever is in the checkpoints: only for files of your own.")
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
def replay(target: Path, format_: str, **options: Any) -> int:
    """Rerun the step at which a run failed and name what made it fail.

    TARGET is a run's folder or log, or a checkpoint. Exit code 1: a culprit was found, 0: the replay follows the log and
    nothing is wrong, 3: no culprit was found, and the replay does not follow the log. docs/replay.md says what may be in a recipe; a small one:

    \b
    import train, postmortem
    def recipe(ctx):
        model, optimizer = train.build()  # fresh: the checkpoint is loaded later
        return postmortem.TrainStep(
            model.to(ctx.device),
            optimizer,
            lambda model, batch: model(*batch),  # returns the loss
            batches=lambda step: [t.to(ctx.device) for t in train.batch(step)],
        )
    """
    with own_stdout():
        result = api.replay(target, progress=_progress(), **options)
    if format_ == "json":
        echo_json(result.as_json())
    else:
        click.echo(printable("\n".join(text(result, shutil.get_terminal_size((100, 24)).columns))))
    if result.culprit.phase != "none" or (result.culprit.cause == "transient" and result.judged):
        return 1
    return 0 if result.judged else 3


def text(result: ReplayResult, width: int = 100) -> Iterator[str]:
    """The answer for people, line by line; prose is broken at `width`, code and paths are not."""
    c = result.culprit

    def prose(*lines: str) -> Iterator[str]:
        for line in lines:
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            yield from textwrap.wrap(line, max(width, 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]

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
        yield from (f"  {i}. {line.replace(c.file, _short(c.file)) if c.file else line}" for i, line in enumerate(result.next, 1))
    yield ""
    yield from prose(f"Fidelity: {'good' if result.fidelity.ok else 'NOT GOOD' if result.fidelity.compared else 'unknown'}. {result.fidelity.note}")
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
    place = [f"operator {c.op}" if c.op else "", "" if c.module is None else f"module {c.module}" if c.module else "in no submodule"]
    place += [f"parameter {c.param}" if c.param else ""]
    if any(place):
        yield "  " + ", ".join(p for p in place if p)


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
        shown = ", ".join(map(str, c.samples[:20])) + (f" and {len(c.samples) - 20} more" if len(c.samples) > 20 else "")
        yield f"  samples of the batch: {shown}"
    yield from _statistics(c.tensor)
    if c.precision_only is not None:
        yield f"  in double precision it {'is gone' if c.precision_only else 'happens as well'}"


def _statistics(tensor: dict[str, Any]) -> Iterator[str]:
    """One line per tensor at the operator; whatever else is known on a line of its own."""
    named = [(f"input {i}", stats) for i, stats in enumerate(tensor.get("inputs") or ())] + [("output", tensor.get("output"))]
    other = {k: v for k, v in tensor.items() if k not in ("inputs", "output")}
    for name, stats in [*named, ("values", other)]:
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


def _progress() -> Callable[[int, int, Any], None] | None:
    """A bar on stderr, where somebody is looking."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None

    def show(done: int, total: int, result: Any) -> None:
        wide = max(10, min(30, shutil.get_terminal_size().columns - 50))
        filled = wide * done // max(1, total)
        end = "\n" if done >= total or result.first_nonfinite else ""
        click.echo(
            f"\r\x1b[Kstep {result.step} [{'#' * filled}{'.' * (wide - filled)}] {done}/{total} loss {result.loss:.5g}{end}", nl=False, err=True
        )

    return show
