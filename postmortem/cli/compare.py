"""``postmortem compare``: the first step at which two runs part, and what differs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from postmortem import api
from postmortem.cli.shared import CONTEXT, PATH, echo_json, loaded
from postmortem.core.model import SCHEMA_VERSION
from postmortem.core.printable import number, printable

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.judging.comparison import Comparison, Parting

_SHOWN = 20


@click.command(context_settings=CONTEXT)
@click.argument("a", metavar="RUN", type=PATH)
@click.argument("b", metavar="RUN", type=PATH)
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
        click.echo(printable(_comparison_text(found)))
    if not any(p.common_steps for p in found.partings):
        return 3
    return 1 if found.first else 0


def _comparison_text(found: Comparison) -> str:
    lines = [f"{found.a}  vs.  {found.b}", ""]
    first = found.first
    if not any(p.common_steps for p in found.partings):
        lines.append("no metric has a step in common: nothing to compare")
    elif first is None:
        n = len(found.partings)
        metrics = "the only common metric" if n == 1 else f"all {n} common metrics"
        lines.append(f"identical in {metrics} at every common step")
    else:
        lines.append(f"the runs first differ at step {first.exact_step}: {_values(first)}")
        beyond = [p for p in found.partings if p.beyond_noise_step is not None and p.role is not None]
        if beyond:
            earliest = min(beyond, key=lambda p: p.beyond_noise_step or 0)
            lines.append(f"by more than the noise from step {earliest.beyond_noise_step} on: {earliest.tag}")
    parted = [p for p in found.partings if p.exact_step is not None]
    if parted:
        lines += ["", "metrics, in the order in which they first differ:"]
        for p in parted[:_SHOWN]:
            start = p.beyond_noise_step
            noise = "within noise" if start is None else f"by more than the noise from step {start} on"
            lines.append(f"  step {p.exact_step}: {_values(p)}; {noise}")
        if len(parted) > _SHOWN:
            lines.append(f"  … and {len(parted) - _SHOWN} more")
    if found.settings:
        lines += ["", "settings that differ:", *(f"  {key}: {x!r} -> {y!r}" for key, (x, y) in found.settings.items())]
    for name, only in ((found.a, found.only_a), (found.b, found.only_b)):
        if only:
            lines += ["", f"only in {name}: {', '.join(only[:_SHOWN])}{', …' if len(only) > _SHOWN else ''}"]
    return "\n".join([*lines, "", *(f"unknown: {what}" for what in found.not_known)])


def _values(p: Parting) -> str:
    assert p.values is not None
    return f"{p.tag} {number(p.values[0], 8)} vs. {number(p.values[1], 8)}"
