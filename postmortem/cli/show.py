"""``postmortem show``: how a run was read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from postmortem.checkpoints.of_run import with_steps
from postmortem.cli.shared import CONTEXT, SOURCE, columns, echo_json, loaded
from postmortem.core.config import parse_roles
from postmortem.core.printable import printable
from postmortem.core.run import NO_TAG
from postmortem.core.view import View
from postmortem.reporters.run_text import run_facts, run_text

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings=CONTEXT)
@click.argument("run", type=SOURCE)
@click.option("--role", multiple=True, metavar="TAG=ROLE", help="Role of a tag whose name does not show it.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show(run: Path, role: tuple[str, ...], format_: str) -> int:
    """Show how RUN (a folder or a file) was read: sources, tags and their roles, steps, restarts, ranks, problems."""
    found = loaded(run, parse_roles(role))
    if found.checkpoints:
        placed = with_steps(found.checkpoints, View(found).last_step)
        found = replace(found, checkpoints=placed)
    for note in found.notes:
        if note.startswith(NO_TAG):
            click.echo(printable(f"postmortem: {note}"), err=True)
    if format_ == "json":
        echo_json(run_facts(found))
    else:
        click.echo(run_text(found, columns()))
    return 3 if any(p.lost for p in found.problems) or not found.n_points else 0
