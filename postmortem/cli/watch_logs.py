"""``postmortem watch-logs``: what is new in runs that grow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postmortem.cli.shared import CONTEXT, PATH, warn_of_broken_plugins
from postmortem.core.config import load_config
from postmortem.core.errors import NotFoundError, UsageError
from postmortem.core.printable import printable
from postmortem.reporters.shared.words import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.following.alerts import Command, Webhook
    from postmortem.following.follow import Follow
    from postmortem.following.news import News

_BUSY = 4.0  # the pause after a look is at least so many times as long as the look: of a large log it takes seconds
_GRAVE = ("error", "warning", "info")


@click.command(context_settings=CONTEXT)
@click.argument("paths", nargs=-1, type=PATH)
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two checks.",
)
@click.option(
    "--once", is_flag=True, help="Check once, print the state of each run, and end with the exit code of `scan`."
)
@click.option(
    "--silence",
    type=click.FloatRange(1.0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Report a run as silent after this time without a write.",
)
@click.option("--command", metavar="CMD", help="Run CMD, without a shell, with what is new as JSON on its stdin.")
@click.option("--webhook", metavar="URL", help="Send what is new to URL, as JSON by POST.")
@click.option(
    "--alert-on",
    type=click.Choice(_GRAVE),
    default="warning",
    show_default=True,
    help="The lowest severity that --command and --webhook receive.",
)
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
def watch_logs(
    paths: tuple[Path, ...],
    every: float,
    once: bool,
    silence: float,
    command: str | None,
    webhook: str | None,
    alert_on: str,
    format_: str,
) -> int:
    """Follow the growing runs below PATHS (default: the current folder) and print what is new.

    Printed are new runs, new findings, changed verdicts, and runs that end or stop writing. The state of each run is
    printed first. Unchanged files are not read again. `--format json` prints one JSON object per line. Only `--command`
    and `--webhook` send anything, and only what is new after the first check. Ctrl-C stops the command.
    """
    from postmortem.following.alerts import Command, Webhook
    from postmortem.following.follow import Follow

    channels: list[Command | Webhook] = [Command.of(command)] if command is not None else []
    channels += [Webhook.of(webhook)] if webhook is not None else []
    if once and channels:
        raise UsageError("--once prints the current state only: it cannot be combined with --command or --webhook")
    roots = paths or (Path("."),)
    for root in roots:
        if not root.exists():
            raise NotFoundError(f"{root}: no such file or folder")
    follow = Follow(roots, load_config(), silence=silence)
    return _watch(follow, every, once, channels, alert_on, format_)


def _watch(
    follow: Follow,
    every: float,
    once: bool,
    channels: Sequence[Command | Webhook],
    alert_on: str,
    format_: str,
) -> int:
    try:
        first = True
        while True:
            began = time.monotonic()
            news = follow.look()
            _print(news, format_)
            if first:
                warn_of_broken_plugins("readers", "dialects", "detectors", "diagnoses", used=True)
            if once:
                return _exit_code(follow)
            if first:
                runs = count(len(follow.reports), "run")
                click.echo(f"postmortem: {runs}; checking every {every:g} s, Ctrl-C to stop", err=True)
            else:
                _alert([n for n in news if _GRAVE.index(n.severity) <= _GRAVE.index(alert_on)], channels)
            took = time.monotonic() - began
            time.sleep(every if first else max(every - took, _BUSY * took))
            first = False
    except KeyboardInterrupt:
        click.echo("postmortem: ended", err=True)
        return 0


def _print(news: Sequence[News], format_: str) -> None:
    for item in news:
        line = json.dumps(item.as_json(), allow_nan=False) if format_ == "json" else printable(item.line())
        click.echo(line)


def _alert(news: Sequence[News], channels: Sequence[Command | Webhook]) -> None:
    for channel in channels if news else ():
        why = channel.send(news)
        if why is not None:
            click.echo(printable(f"postmortem: the alert failed: {why}"), err=True)


def _exit_code(follow: Follow) -> int:
    from postmortem import api
    from postmortem.core.report import Report

    report = Report(runs=tuple(follow.reports), version="", options={}, problems=tuple(follow.problems))
    if not report.runs:
        raise NotFoundError("no training log found")
    return api.exit_code(report, "error")
