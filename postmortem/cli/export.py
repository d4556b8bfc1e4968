"""``postmortem export``: the numbers of a run as a table for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from postmortem.cli.shared import CONTEXT, SOURCE, loaded, refuse_to_replace_a_log, whole_file
from postmortem.core.errors import PostmortemError
from postmortem.core.printable import printable
from postmortem.reporters.shared.words import count
from postmortem.runs.table_file import writer_of


@click.command(context_settings=CONTEXT)
@click.argument("run", type=SOURCE)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="File to write, FILE.csv or FILE.parquet (extra [parquet]). It must not be a log of RUN.",
)
def export(run: Path, output: Path) -> int:
    """Write the numbers of RUN (a folder or a file) as a table: one row per number, in the order of the logs.

    The columns are run, source, rank (-1 if unknown), segment, tag, step, wall_time and value, as in `Run.frame`. NaN
    and infinities are kept, in CSV as nan, inf and -inf. FILE appears only when it is complete.
    """
    write = writer_of(output.name)
    refuse_to_replace_a_log(output, (run,))
    found = loaded(run)
    try:
        with whole_file(output) as stream:
            write(found, stream)
    except OSError as error:
        raise PostmortemError(f"{output}: cannot be written: {error.strerror or error}") from error
    click.echo(printable(f"wrote {output} ({count(found.n_points, 'row')})"), err=True)
    lost = sum(bool(p.lost) for p in found.problems)
    if lost:
        why = f"data was lost while reading ({count(lost, 'problem')}, see `postmortem show {run}`)"
        click.echo(printable(f"postmortem: {why}"), err=True)
    return 3 if lost or not found.n_points else 0
