"""``postmortem check``: examines the first steps of a training before it runs for days."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from postmortem.cli.shared import CONTEXT, echo_json
from postmortem.core.printable import printable
from postmortem.reporters.check_text import check_lines

if TYPE_CHECKING:
    from typing import Literal


@click.command(context_settings=CONTEXT)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--recipe", metavar="FILE.py[:FUNCTION]", help="Python file that rebuilds a step, instead of COMMAND.")
@click.option(
    "--steps", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of optimizer steps."
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Maximum time after the first step."
)
@click.option(
    "--sandbox",
    type=click.Choice(("auto", "overlay", "landlock", "none")),
    default="auto",
    show_default=True,
    help="How your files are protected from COMMAND; none: not at all.",
)
@click.option("--network", is_flag=True, help="Let COMMAND use the network.")
@click.option(
    "--try/--no-try",
    "tries",
    default=True,
    show_default=True,
    help="Run COMMAND again: with a change that would cure a fault, on one batch only, and as it is.",
)
@click.option("-v", "--verbose", is_flag=True, help="List every check: ok, and not checked with its reason.")
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
def check(
    command: tuple[str, ...],
    recipe: str | None,
    steps: int,
    seconds: float,
    sandbox: Literal["auto", "overlay", "landlock", "none"],
    network: bool,
    tries: bool,
    verbose: bool,
    format_: str,
) -> int:
    """Run the first steps of a training and report why it would not learn.

    COMMAND is the training command as you type it: `postmortem check -- python train.py --lr 3e-4`; with --recipe, the
    steps of a recipe are run one after another, from its initial state. It runs unmodified, your files are not changed,
    and it is stopped once enough was observed: after --steps, or --seconds after the first step, for which it has 120 s
    more. Faults that raise no error and produce no NaN are reported with their line: for example gradients that never
    reach a parameter, or are not cleared. `postmortem rules` lists them. For some of them COMMAND runs again with a
    change, such as gradients that are cleared after each step, and the losses of both runs are compared; this takes
    about --seconds again at most, and each start is told on stderr. The checklist also has what a step costs in time
    and memory, types, devices and seeds, and, from further runs of a few steps that take about --seconds at most,
    whether one batch can be overfitted and two runs agree; these change no exit code. A non-finite loss is reported as
    well; `postmortem run` finds its cause. Exit code 1: a fault or a non-finite loss was found, or the program failed;
    2: no training was seen; 3: fewer than 4 optimizer steps were seen, too few to judge.
    """
    if bool(command) == (recipe is not None):
        raise click.UsageError("give a COMMAND after --, or --recipe FILE.py" + (", not both" if command else ""))
    if recipe is not None:
        command = (sys.executable, "-m", "postmortem.attach.recipe_training", recipe, str(steps))
    from postmortem.attach.checking import check as look  # not at the top: --help loads no pandas

    result = look(
        command,
        steps=steps,
        seconds=seconds,
        sandbox=sandbox,
        offline=not network,
        tries=tries,
        begins=_begins,
    )
    result = replace(result, command=()) if recipe is not None else result
    if format_ == "json":
        echo_json(result.as_json())
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        click.echo(printable("\n".join(check_lines(result, width, verbose=verbose))))
    return result.exit_code


def _begins(what: str) -> None:
    """A start of the command: it may take minutes, and its imports again."""
    click.echo(f"postmortem: {what}", err=True)
