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
    "--every", type=click.FloatRange(0.1), default=10.0, show_default=True, metavar="SECONDS", help="Between two looks."
)
@click.option("--once", is_flag=True, help="Look once, print where each run stands, and end as `scan` does.")
@click.option(
    "--silence",
    type=click.FloatRange(1.0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Without a write, after which a run is told as silent; longer where it paused longer before.",
)
@click.option("--command", metavar="CMD", help="Run CMD, without a shell, with what is new as JSON on its stdin.")
@click.option("--webhook", metavar="URL", help="Send what is new to URL, as JSON by POST.")
@click.option(
    "--alert-on",
    type=click.Choice(_GRAVE),
    default="warning",
    show_default=True,
    help="The least severity of what is handed to --command and --webhook.",
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
    """Watch the runs below PATHS (by default this folder) while they grow, and print what is new.

    That is: a run that appears, a finding, a verdict that changes, a run that ends or falls silent. First it prints
    where each run stands. Files that did not change are not read again. `--format json` prints one JSON object a line.
    Nothing is sent anywhere but by `--command` and `--webhook`, which get only what is new after the first look.
    Ctrl-C ends it.
    """
    from postmortem.following.alerts import Command, Webhook
    from postmortem.following.follow import Follow

    channels: list[Command | Webhook] = [Command.of(command)] if command is not None else []
    channels += [Webhook.of(webhook)] if webhook is not None else []
    if once and channels:
        raise UsageError("--once tells where runs stand and nothing new: it takes no --command or --webhook")
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
                click.echo(f"postmortem: {runs}; looking every {every:g} s, Ctrl-C ends", err=True)
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
            click.echo(printable(f"postmortem: no alert was given: {why}"), err=True)


def _exit_code(follow: Follow) -> int:
    from postmortem import api
    from postmortem.core.report import Report

    report = Report(runs=tuple(follow.reports), version="", options={}, problems=tuple(follow.problems))
    if not report.runs:
        raise NotFoundError("no training log found")
    return api.exit_code(report, "error")
