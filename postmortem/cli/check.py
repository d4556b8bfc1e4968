"""``postmortem check``: a short look at a training before it runs for days."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import click

from postmortem.cli.shared import CONTEXT, echo_json
from postmortem.core.printable import printable
from postmortem.reporters.check_text import check_lines

if TYPE_CHECKING:
    from typing import Literal


@click.command(context_settings=CONTEXT)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--steps", type=click.IntRange(1), default=1000, show_default=True, help="Optimizer steps to look at.")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds to look.")
@click.option(
    "--sandbox",
    type=click.Choice(("auto", "overlay", "landlock", "none")),
    default="auto",
    show_default=True,
    help="How files are protected from COMMAND; none: it writes them for real.",
)
@click.option("--network", is_flag=True, help="Let COMMAND use the network.")
@click.option(
    "--try/--no-try",
    "tries",
    default=True,
    show_default=True,
    help="Run COMMAND again with a change that would cure a fault, where there is one, and compare the losses.",
)
@click.option("-v", "--verbose", is_flag=True, help="List every check: ok, and not checked with its reason.")
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
def check(
    command: tuple[str, ...],
    steps: int,
    seconds: float,
    sandbox: Literal["auto", "overlay", "landlock", "none"],
    network: bool,
    tries: bool,
    verbose: bool,
    format_: str,
) -> int:
    """Look at the first steps of a training and say why it would not learn.

    COMMAND is the training command as you type it: `postmortem check -- python train.py --lr 3e-4`. It runs as it is,
    without effect on your files, and is ended when enough was seen. Faults that raise nothing and print no NaN are
    named with their line: gradients that do not arrive, are not cleared, or come too late. `postmortem rules` lists
    them. For some of them COMMAND runs again with a change, such as gradients that are cleared after each step, and the
    losses of both runs are compared; this takes at most as long as the look. A loss that is not finite is reported as
    well; `postmortem run` names what made it. Exit code 1: there are faults, or such a loss; 2: no training was seen.
    """
    from postmortem.attach.checking import check as look  # not at the top: --help loads no pandas

    result = look(command, steps=steps, seconds=seconds, sandbox=sandbox, offline=not network, tries=tries)
    if format_ == "json":
        echo_json(result.as_json())
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        click.echo(printable("\n".join(check_lines(result, width, verbose=verbose))))
    return result.exit_code
