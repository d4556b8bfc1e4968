"""``postmortem compare``: the first step at which two runs differ, and what differs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from postmortem import api
from postmortem.cli.shared import CONTEXT, SOURCE, echo_json, loaded
from postmortem.core.model import SCHEMA_VERSION
from postmortem.reporters.comparison_text import comparison_text

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings=CONTEXT)
@click.argument("a", metavar="RUN", type=SOURCE)
@click.argument("b", metavar="RUN", type=SOURCE)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def compare(a: Path, b: Path, format_: str) -> int:
    """Find the first step at which two runs differ, and what differs in configuration, schedule and environment.

    The first RUN is the baseline. Exit code 1 if they differ, 3 if they have no step in common.
    """
    found = api.compare(loaded(a), loaded(b))
    if format_ == "json":
        first = dataclasses.asdict(found.first) if found.first else None
        echo_json({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(found), "first": first})
    else:
        click.echo(comparison_text(found))
    if not any(p.common_steps for p in found.partings):
        return 3
    return 1 if found.first else 0
