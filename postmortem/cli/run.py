"""``postmortem run``: runs the user's training command and watches it."""

from __future__ import annotations

import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postmortem.cli.shared import CONTEXT, echo_json
from postmortem.core.own_output import beside_a_training
from postmortem.core.printable import printable
from postmortem.reporters.check_text import check_lines
from postmortem.reporters.replay_text import capture_lines, closing_line, replay_lines

if TYPE_CHECKING:
    from typing import Literal

    from postmortem.core.blame import CheckResult
    from postmortem.core.culprit import ReplayResult

_REPORTS = Path("postmortem-report")


@click.command(context_settings=CONTEXT)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--on-fault",
    type=click.Choice(("continue", "skip", "stop")),
    default="continue",
    show_default=True,
    help="After a non-finite value: continue, skip the updates of such steps, or end COMMAND with exit code 1.",
)
@click.option("--stop", is_flag=True, help="The same as --on-fault stop.")
@click.option(
    "--level",
    type=click.Choice(("basic", "advanced", "extreme")),
    default="basic",
    show_default=True,
    help="What is measured. basic: losses and parameters; advanced: also norms per layer (target: 5 % CPU overhead); "
    "extreme: also the largest value of each operator (target: 20 %).",
)
@click.option(
    "--captures",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    metavar="N",
    help="Keep the last N captures in postmortem-report/captures; 0: write none.",
)
@click.option("--fix/--no-fix", default=True, help="Try fixes on the failing step.  [default: --fix]")
@click.option(
    "--why", is_flag=True, help="Also report why it does not learn: faults that raise no error and produce no NaN."
)
@click.option("-v", "--verbose", is_flag=True, help="With --why, list every check.")
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
def run(
    command: tuple[str, ...],
    on_fault: Literal["continue", "skip", "stop"],
    stop: bool,
    level: Literal["basic", "advanced", "extreme"],
    captures: int,
    fix: bool,
    why: bool,
    verbose: bool,
    format_: str,
) -> int:
    """Run a training command and watch it; at the first non-finite value, name the culprit.

    COMMAND is the command as you type it: `postmortem run -- torchrun --nproc-per-node 8 train.py --lr 3e-4`. It runs
    normally: its output, files and exit code are unchanged. The culprit is printed to stderr and saved in the folder
    postmortem-report, together with a history of losses, timing, memory and norms that `postmortem scan` reads. On a
    fault, an exception, SIGTERM, SIGUSR2 or `touch postmortem-report/captures/request` the step is saved as a capture,
    which `postmortem replay CAPTURE -- COMMAND` reruns. With --format json, COMMAND's own output goes to stderr. With
    --why, the result is that of `postmortem check`, for the whole run.
    """

    def tell(result: ReplayResult) -> None:
        if result.culprit.phase == "none" and result.raised is None and not result.next:
            return
        _beside("\n" + "\n".join(replay_lines(result, _width())) + "\n")

    json_wanted = format_ == "json"
    from postmortem.attach import driver  # not at the top: --help loads no pandas

    looks: list[CheckResult] = []
    history = Path("postmortem-report", "history", time.strftime("%Y%m%d-%H%M%S"))
    code, result = driver.watch(
        command,
        on_fault="stop" if stop else on_fault,
        fix=fix,
        output_to_stderr=json_wanted,
        told=tell,
        noticed=_beside,
        level=level,
        history=history.absolute(),
        captures=driver.Captures(_REPORTS / "captures", keep=captures) if captures else None,
        look={} if why else None,
        looked=partial(_look, command, time.monotonic(), looks) if why else None,
    )
    _tell_the_end(result, history)
    if json_wanted:
        echo_json(looks[0].as_json() if looks else result.as_json())
    elif looks:
        _beside("\n" + "\n".join(check_lines(looks[0], _width(), verbose=verbose, ran=True)))
    return code


def _tell_the_end(result: ReplayResult, history: Path) -> None:
    """Prints to stderr what was saved: captures and history, then the culprit and the path of the report."""
    for line in capture_lines(result):
        click.echo(f"postmortem: {line}", err=True)
    failed = result.tick is not None or result.raised is not None
    if not failed and result.culprit.how:
        verdict = "no non-finite value was seen: " if result.judged else ""
        click.echo(f"postmortem: {verdict}{'; '.join(result.culprit.how)}", err=True)
    for note in () if failed else result.notes:  # a report of a fault says them
        click.echo(printable(f"postmortem: {note}"), err=True)
    if history.is_dir():
        click.echo(f"postmortem: the history is in {history}: `postmortem scan .` shows it", err=True)
    if (closing := closing_line(result)) is not None:
        click.echo(printable(f"postmortem: {closing}"), err=True)
    if failed:
        from postmortem.attach.noting import save

        click.echo(f"postmortem: the report is in {save(result, _REPORTS, history)}", err=True)


def _look(command: tuple[str, ...], started: float, into: list[CheckResult], session: Path) -> None:
    """Judges the observations before the session folder is deleted."""
    from postmortem.attach.checking import looked

    into.append(looked(session, command, time.monotonic() - started))


def _beside(text: str) -> None:
    click.echo(beside_a_training(printable(text), sys.stderr), err=True)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns
