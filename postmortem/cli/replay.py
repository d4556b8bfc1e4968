"""``postmortem replay``: rerun the failing step and name the culprit."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postmortem import api
from postmortem.cli.shared import CONTEXT, PATH, columns, echo_json, own_stdout, warn_of_broken_plugins
from postmortem.core.printable import printable
from postmortem.core.progress import STARTED, listening
from postmortem.core.registry import entry_points
from postmortem.reporters.replay_text import replay_lines

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command(context_settings=CONTEXT)
@click.argument("target", type=PATH)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "--recipe",
    metavar="FILE.py[:FUNCTION]",
    help="Python file that rebuilds a step.  [default: recipe.py in or beside the run]",
)
@click.option("--step", type=int, help="Step to rerun, numbered as in the log.  [default: where the run failed]")
@click.option("--checkpoint", type=PATH, help="Checkpoint to start from.  [default: the last good one before the step]")
@click.option("--device", help="cpu, cuda, cuda:1, …  [default: cuda if available]")
@click.option("--fix/--no-fix", default=True, help="Try fixes on the failing step.  [default: --fix]")
@click.option(
    "--repro",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Write a stand-alone script that reproduces the failure.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Unpickle everything in the checkpoints, which can run code: only for files you trust.",
)
@click.option(
    "--sandbox",
    type=click.Choice(("auto", "overlay", "landlock", "none")),
    default="auto",
    help="How your files are protected from COMMAND: overlay redirects writes, landlock denies them.  [default: auto]",
)
@click.option(
    "--network/--no-network", default=False, help="Allow COMMAND to use the network.  [default: --no-network]"
)
@click.option(
    "--fork/--no-fork",
    default=True,
    help="Repeat the step in forked copies of COMMAND's process, or, as on a GPU, in a second run.  [default: --fork]",
)
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
def replay(
    target: Path, command: tuple[str, ...], sandbox: str, network: bool, fork: bool, format_: str, **options: Any
) -> int:
    """Rerun the step at which a run failed and name the cause.

    COMMAND is the training command as you type it, resuming from a checkpoint before the failing step:
    `postmortem replay runs/exp7 -- python train.py --resume runs/exp7/ckpt_4750.pt`. It runs unmodified up to that
    step; your files are not changed. Without COMMAND, a recipe defines how a step is run.

    TARGET is a run folder, a log or a checkpoint. Exit code 1: a culprit was found, or COMMAND raised in a step; 0: the
    replayed losses match the log and nothing failed; 2: COMMAND failed before its first step; 3: no culprit was found,
    and the replayed losses do not match the log. docs/replay.md describes recipes. A minimal one:

    \b
    import train, postmortem
    def recipe(ctx):
        model, optimizer = train.build()  # newly initialized: the checkpoint is loaded later
        return postmortem.TrainStep(
            model.to(ctx.device),
            optimizer,
            lambda model, batch: model(*batch),  # returns the loss
            batches=lambda step: [t.to(ctx.device) for t in train.batch(step)],
        )
    """
    # fixes need torch, which only the process of COMMAND loads: it takes seconds
    scan_alone = command and not entry_points("postmortem.fixes")
    warn_of_broken_plugins(*(api.OF_A_SCAN if scan_alone else ()))
    if command:
        given = [name for name in _OF_A_RECIPE if options.pop(name)]
        if given:
            raise click.UsageError(f"--{given[0]} applies only to a replay with a recipe, not to COMMAND")
        from postmortem.attach.outcome import NothingSeen  # not at the top: --help loads no pandas

        try:
            options |= {"sandbox": sandbox, "offline": not network, "fork": fork, "progress": _ticks()}
            with listening(_starts()):
                result = api.rerun(target, command, **options)
        except NothingSeen as error:
            if format_ == "json":
                echo_json(error.result.as_json())
            raise
    else:
        with own_stdout():
            result = api.replay(target, progress=_progress(), **options)
    if format_ == "json":
        echo_json(result.as_json())
    else:
        click.echo(printable("\n".join(replay_lines(result, columns(), asked=options["step"]))))
    if result.culprit.phase != "none" or (result.culprit.cause == "transient" and result.judged):
        return 1
    if result.raised is not None:
        return 1
    return 0 if result.judged else 3


_OF_A_RECIPE = ("recipe", "checkpoint", "device", "repro", "trust")


_PAUSE = 20.0
"""Seconds between two lines on stderr where that is no terminal."""


def _starts() -> Callable[[str, int, int], None]:
    """A line for each further start of the command: it may take minutes."""
    starts = 0

    def show(what: str, done: int, total: int) -> None:
        nonlocal starts
        if what == STARTED:
            starts += done
            if starts > 1:
                click.echo(f"postmortem: start {starts} of the command, to explain what was found", err=True)

    return show


def _ticks() -> Callable[[int, int | None], None]:
    """A counter on stderr; where that is no terminal, a line from time to time."""
    shown = _shown()

    def show(ticks: int, step: int | None) -> None:
        of_log = "" if step is None else f", logged step {step}"
        shown(f"{ticks} optimizer steps{of_log}" if ticks else "no optimizer step yet", "\r")

    return show


def _progress() -> Callable[[int, int, Any], None]:
    """A progress bar on stderr; where that is no terminal, a line from time to time."""
    shown, bar = _shown(), _redraws()

    def show(done: int, total: int, result: Any) -> None:
        loss = f"loss {result.loss:.5g}"
        if not bar:
            shown(f"step {result.step}: {done} of {total} steps, {loss}", "")
            return
        wide = max(10, min(30, shutil.get_terminal_size().columns - 50))
        filled = wide * done // max(1, total)
        end = "\n" if done >= total or result.first_nonfinite else ""
        shown(f"step {result.step} [{'#' * filled + '.' * (wide - filled)}] {done}/{total} {loss}", end)

    return show


def _redraws() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _shown() -> Callable[[str, str], None]:
    """Shows a state of one line, which ends so; where a line cannot be redrawn, as a line of its own, not too often."""
    redraws, last = _redraws(), time.monotonic()

    def show(text: str, end: str) -> None:
        nonlocal last
        now = time.monotonic()
        if redraws:
            click.echo(f"\r\x1b[K{text}{end}", nl=False, err=True)
        elif now - last >= _PAUSE:
            last = now
            click.echo(f"postmortem: {text}", err=True)

    return show
