"""``postmortem annotate``: writes findings for TensorBoard and W&B to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from postmortem import api
from postmortem._version import __version__
from postmortem.cli.shared import CONTEXT, PATH, warn_of_broken_plugins
from postmortem.core.errors import PostmortemError
from postmortem.core.printable import printable
from postmortem.reporters.annotations import folder_of
from postmortem.reporters.annotations.event_file import write_events
from postmortem.reporters.annotations.wandb_run import write_to_wandb

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings=CONTEXT)
@click.argument("path", metavar="RUN", type=PATH)
@click.option(
    "--wandb",
    "to_wandb",
    is_flag=True,
    help="Also set keys of the W&B run's summary and raise an alert (extra [wandb]; WANDB_MODE and so on apply).",
)
def annotate(path: Path, to_wandb: bool) -> int:
    """Write the findings of RUN, or of each run below it, into a separate event file for TensorBoard.

    The file is written to a new folder, postmortem-notes, in the folder of the run. The files of the training are not
    changed, and a scan ignores this folder. TensorBoard shows it as a separate run: the report and the messages in the
    tab Text, the steps of the findings as points.
    """
    warn_of_broken_plugins(*api.OF_A_SCAN)
    report = api.scan(path)
    for run in report:
        folder = folder_of(run)
        try:
            file = write_events(run, folder, __version__)
        except OSError as error:
            raise PostmortemError(f"{folder}: cannot be written: {error.strerror}") from error
        click.echo(printable(f"wrote {file}"))
        if to_wandb and any(source.kind == "wandb" for source in run.sources):
            click.echo(printable(f"annotated the W&B run {write_to_wandb(run, folder)}"))
        elif to_wandb:
            click.echo(printable(f"postmortem: {run.path} is not a W&B run"), err=True)
    return 0 if report.runs else 2
