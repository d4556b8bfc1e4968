"""``postmortem recipe``: write a draft of a recipe for a run."""

from __future__ import annotations

from pathlib import Path

import click

from postmortem import api
from postmortem._lazy import need_torch
from postmortem.checkpoints.find import find_checkpoints
from postmortem.cli.shared import CONTEXT, PATH, warn_of_broken_plugins
from postmortem.core.printable import printable
from postmortem.runs.target import resolve

_WITHOUT = " (no checkpoint was found: it begins with the initial state; --checkpoint FILE names one)"


@click.command(context_settings=CONTEXT)
@click.argument("run", type=PATH)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write; it must not exist yet.  [default: recipe.py in the folder of the run]",
)
@click.option("--checkpoint", type=PATH, help="Checkpoint to read.  [default: the last good one, else the newest]")
def recipe(run: Path, output: Path | None, checkpoint: Path | None) -> int:
    """Write a draft of a recipe for RUN, for `postmortem replay RUN`.

    The draft uses what the checkpoint contains (transformers' Trainer, Lightning or a plain loop), and imports the
    training script if importing it only defines things. What is still unknown is left as functions to fill in. Without
    a checkpoint the draft starts from the initial state, from which a replay runs up to 1000 steps.
    """
    warn_of_broken_plugins("readers", "dialects", "checkpoint formats")
    need_torch("recipe")
    meant = resolve(run)
    read = api.load(run if meant.checkpoint is None else meant.root) if meant.files is not None else None
    told = api.judge(read).diagnosis if read is not None else None
    good = told.last_good_checkpoint if told is not None else None
    known = [c.path for c in find_checkpoints(meant.folder)]
    chosen = checkpoint or meant.checkpoint or good or (known[-1] if known else None)
    from postmortem.replay import scaffold

    where = output or meant.folder / "recipe.py"
    start = Path(chosen) if chosen is not None else None
    missing = scaffold.write(scaffold.draft(read, meant.folder, start), where)
    click.echo(printable(f"wrote {where}: {missing}{_WITHOUT if start is None else ''}"))
    return 0
