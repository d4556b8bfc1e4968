"""``postmortem scan`` and ``postmortem report``."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postmortem import api
from postmortem.cli.shared import (
    CONTEXT,
    SOURCE,
    own_stdout,
    refuse_to_replace_a_log,
    warn_of_broken_plugins,
    write_whole,
)
from postmortem.cli.shown_progress import shown_progress
from postmortem.core.config import FAIL_ON, Config, load_config, parse_roles
from postmortem.core.errors import PostmortemError
from postmortem.core.printable import printable
from postmortem.core.run import NO_TAG
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.shared.words import count
from postmortem.runs.cache import cached

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.core.report import Report
    from postmortem.reporters import Render

_paths = click.argument("paths", nargs=-1, type=SOURCE)
_OF_A_REPLAY = ("fixes", "stages of a replay")
_HERE = (Path("."),)
_MOST_TOLD = 10
_WITH_PLACES = ("sarif", "github", "junit")  # formats that attach findings to a line of a file
_select = click.option(
    "--select",
    multiple=True,
    metavar="CODE|NAME",
    help="Report only these findings: a code (NAN001), a prefix (NAN) or a name; may be repeated.",
)
_ignore = click.option("--ignore", multiple=True, metavar="CODE|NAME", help="Do not report these findings.")
_role = click.option(
    "--role",
    multiple=True,
    metavar="TAG=ROLE",
    help="Role of a tag whose name does not show it, e.g. --role my/objective=loss.",
)
_checkpoints = click.option(
    "--checkpoints",
    is_flag=True,
    help="Check all saved weights of every run (needs torch), not only the newest ones.",
)
_replay = click.option(
    "--replay",
    is_flag=True,
    help="Rerun the failing step of failed runs that have a recipe.py and a checkpoint; name the culprit.",
)
_no_cache = click.option(
    "--no-cache",
    is_flag=True,
    help="Neither read nor write the cache.",
)
_jobs = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes.  [default: depends on the size of the runs; at most one per core]",
)
_executor = click.option(
    "--executor",
    metavar="ADDRESS",
    help="Read and judge the runs on an existing Dask cluster, dask://HOST:PORT, whose workers see the same files.",
)


class _Format(click.Option):
    """Its help names all formats, for which all reporters are imported: a scan needs one."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = f"One of {', '.join(r.name for r in REPORTERS)}.  [default: text]"
        return super().get_help_record(ctx)


@click.command(context_settings=CONTEXT)
@_paths
@click.option(
    "--format",
    "format_",
    cls=_Format,
    default="text",
    metavar="FORMAT",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of stdout."
)
@_select
@_ignore
@_role
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    help="Exit with code 1 for findings at or above this severity.  [default: error]",
)
@_checkpoints
@_replay
@_no_cache
@_jobs
@_executor
@click.option(
    "--baseline",
    type=SOURCE,
    metavar="RUN",
    help="Report for each run the first step at which it differs from this one.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every finding, event and problem in full.")
def scan(
    paths: tuple[Path, ...],
    format_: str,
    output: Path | None,
    fail_on: str | None,
    verbose: bool,
    baseline: Path | None,
    **options: Any,
) -> int:
    """Find all runs below PATHS (default: the current folder) and report what happened to each, worst first.

    A path may be a URL (s3://…, gs://…, https://…; extra [remote]) or a run in W&B's cloud (wandb://ENTITY/PROJECT/RUN;
    extra [wandb]): what readers use there is copied first.
    """
    render = REPORTERS[format_]
    refuse_to_replace_a_log(output, paths or _HERE)
    config = _config(fail_on=fail_on, **options)
    report = _scanned(
        paths,
        config,
        **_how(options),
        baseline=baseline,
        draw=format_ == "html",
        locate=format_ in _WITH_PLACES,
    )
    shown = RenderOptions(
        width=shutil.get_terminal_size((100, 24)).columns, color=output is None and _wants_color(), verbose=verbose
    )
    _write(_rendered(render, report, shown), output)
    if not report.runs:
        raise PostmortemError("; ".join(f"{p.path}: {p.what}" for p in report.problems[:5]))
    return api.exit_code(report, config.fail_on)


@click.command(context_settings=CONTEXT)
@_paths
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The HTML file to write.",
)
@_select
@_ignore
@_role
@_checkpoints
@_replay
@_no_cache
@_jobs
@_executor
@click.option("--overlay", is_flag=True, help="Also plot the curves of all runs in the same charts, to compare them.")
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out user and host names, paths, addresses, settings and the options of commands.",
)
def report(paths: tuple[Path, ...], output: Path, overlay: bool, redact: bool, **options: Any) -> int:
    """Write a self-contained HTML report of the runs below PATHS (default: the current folder); it needs no network.

    With --replay, the result of each replay is printed as well.
    """
    refuse_to_replace_a_log(output, paths or _HERE)
    config = _config(fail_on=None, **options)
    found = _scanned(paths, config, **_how(options), draw=True)
    from postmortem.reporters.replay_text import replayed_lines
    from postmortem.reporters.shared.redact import redacted

    shown = redacted(found) if redact else found
    _write(_rendered(REPORTERS["html"], shown, RenderOptions(verbose=True, overlay=overlay)), output)
    width = shutil.get_terminal_size((100, 24)).columns
    for run in shown.runs:
        if run.culprit is not None and options["replay"]:  # not what a watch had noted beside the run
            click.echo(printable("\n".join([*replayed_lines(run, width), ""])))
    click.echo(
        f"wrote {output} ({count(len(found.runs), 'run')}), to open in a browser: {output.resolve().as_uri()}", err=True
    )
    return api.exit_code(found, "never")


def _rendered(render: Render, report: Report, options: RenderOptions) -> str:
    """The report in a format. PostmortemError where the reporter raises."""
    try:
        return render(report, options)
    except Exception as error:
        what = REPORTERS.fault(render, "rendering the report", error)
        raise PostmortemError(f"{what}; nothing was written: use another --format") from error


def _config(
    *, select: tuple[str, ...], ignore: tuple[str, ...], role: tuple[str, ...], fail_on: str | None, **_: Any
) -> Config:
    config = load_config()
    if config.select or config.ignore:
        click.echo(f"postmortem: {config.origin} disables checks (select or ignore)", err=True)
    roles = {**config.roles, **parse_roles(role)}
    ignored = (*config.ignore, *ignore)
    return replace(
        config, select=select or config.select, ignore=ignored, roles=roles, fail_on=fail_on or config.fail_on
    )


def _how(options: Mapping[str, Any]) -> dict[str, Any]:
    """What `_scanned` gets of the options of a command."""
    return {name: options[name] for name in ("role", "checkpoints", "replay", "no_cache", "jobs", "executor")}


def _scanned(
    paths: tuple[Path, ...],
    config: Config,
    *,
    role: tuple[str, ...],
    checkpoints: bool,
    replay: bool,
    no_cache: bool,
    jobs: int | None,
    executor: str | None,
    baseline: Path | None = None,
    draw: bool = False,
    locate: bool = False,
) -> Report:
    shown = shown_progress()
    try:
        with (
            own_stdout() if replay else nullcontext(),
            nullcontext() if no_cache else cached(_warn),
            shown or nullcontext(),
        ):
            report = api.scan(
                paths or _HERE,
                config=config,
                keep=False,
                look_into_checkpoints=checkpoints,
                baseline=baseline,
                replay_failed=replay,
                draw=draw,
                locate=locate,
                jobs=jobs,
                executor=executor,
                progress=shown.runs if shown else None,
            )
    finally:
        # of what was used: the dialects of text logs are imported only where there is one
        warn_of_broken_plugins(*api.OF_A_SCAN, *(_OF_A_REPLAY if replay else ()), used=True)
    _tell_tags_without_run(report, parse_roles(role))
    _tell_not_replayed(report)
    return report


def _warn(what: str) -> None:
    click.echo(printable(f"postmortem: {what}"), err=True)


def _tell_tags_without_run(report: Report, roles: Mapping[str, str]) -> None:
    """Prints a line to stderr for each tag of --role that no run has. Those of a settings file may be of other runs."""
    for tag in roles:
        found = [next((n for n in run.notes if n.startswith(f"{NO_TAG}{tag!r}")), None) for run in report.runs]
        if found and found[0] is not None and None not in found:
            _warn(found[0])


def _tell_not_replayed(report: Report) -> None:
    """Prints a line to stderr for each failed run that --replay could not rerun: why, and what to type instead."""
    told = [(run.name, note) for run in report.runs for note in run.notes if note.startswith(api.NOT_REPLAYED)]
    for name, note in told[:_MOST_TOLD]:
        reason = note.removeprefix(api.NOT_REPLAYED)
        click.echo(printable(f"postmortem: {name} was not replayed: {reason}"), err=True)
    if len(told) > _MOST_TOLD:
        more = count(len(told) - _MOST_TOLD, "more run")
        click.echo(f"postmortem: {more} not replayed: --verbose shows why", err=True)


def _wants_color() -> bool:
    """Whether stdout is a terminal with colours, and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write(text: str, output: Path | None) -> None:
    text = text if text.endswith("\n") or not text else text + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        write_whole(output, text)
    except OSError as error:
        raise PostmortemError(f"{output}: cannot be written: {error.strerror}") from error
