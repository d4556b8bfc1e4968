"""``postmortem layout``: gradients whose strides differ from those of their parameter, as in DDP's warning."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import click

from postmortem.cli.shared import CONTEXT, echo_json
from postmortem.core.printable import printable
from postmortem.reporters.layout_text import layout_lines

if TYPE_CHECKING:
    from typing import Literal


@click.command(context_settings=CONTEXT)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--recipe", metavar="FILE.py[:FUNCTION]", help="Python file that rebuilds a step, instead of COMMAND.")
@click.option("--iterations", type=click.IntRange(1), default=8, show_default=True, help="Backward passes to examine.")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Maximum time in seconds.")
@click.option(
    "--ranks",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="Processes of a trial under DDP if COMMAND does not use DDP itself; 1: try without DDP.",
)
@click.option("--fix/--no-fix", default=True, help="Try fixes.  [default: --fix]")
@click.option(
    "--sandbox",
    type=click.Choice(("auto", "overlay", "landlock", "none")),
    default="auto",
    show_default=True,
    help="How your files are protected from COMMAND; none: not at all.",
)
@click.option("--network", is_flag=True, help="Let COMMAND use the network.")
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
def layout(
    command: tuple[str, ...],
    recipe: str | None,
    iterations: int,
    seconds: float,
    ranks: int,
    fix: bool,
    sandbox: Literal["auto", "overlay", "landlock", "none"],
    network: bool,
    format_: str,
) -> int:
    """Name the line that produces a gradient with strides different from its parameter's.

    For DDP's warning "Grad strides do not match bucket view strides". COMMAND is the training command as you type it:
    `postmortem layout -- torchrun --nproc-per-node 2 train.py`, or `-- python train.py`. Its first iterations are run
    without changing your files: once to find such gradients, then once per possible fix, under DDP with gloo in two
    processes if COMMAND does not use DDP itself. DDP's warnings are counted before and after. Exit code 1: a gradient
    has different strides; 2: no backward pass was seen.
    """
    if bool(command) == (recipe is not None):
        raise click.UsageError("give a COMMAND after --, or --recipe FILE.py" + (", not both" if command else ""))
    from postmortem.attach.layouts import layout as look  # not at the top: --help loads no pandas

    result = look(
        command,
        recipe=recipe,
        iterations=iterations,
        seconds=seconds,
        ranks=ranks,
        fix=fix,
        sandbox=sandbox,
        offline=not network,
    )
    if format_ == "json":
        echo_json(result.as_json())
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        click.echo(printable("\n".join(layout_lines(result, width))))
    return result.exit_code
