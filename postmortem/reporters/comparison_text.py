"""The text output of a comparison of two runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.core.comparison import MACHINE
from postmortem.core.printable import number, printable

if TYPE_CHECKING:
    from postmortem.core.comparison import Comparison, Parting

_SHOWN = 20
_SPEED = re.compile(r"(?i)run_?time|per_sec|/s(ec)?$|_s(ec)?$|\btime\b")


def comparison_text(found: Comparison) -> str:
    """The first difference, every metric that differs, the settings that differ, and what is unknown.

    Safe for a terminal.
    """
    lines = [f"{found.a}  vs.  {found.b}", ""]
    first = found.first
    if not any(p.common_steps for p in found.partings):
        lines.append("no metric has a step in common: nothing to compare")
    elif first is None:
        n = len(found.partings)
        metrics = "the only common metric" if n == 1 else f"all {n} common metrics"
        lines.append(f"identical in {metrics} at every common step")
    else:
        lines.append(f"the runs first differ at {first.unit} {first.exact_step}: {_values(first)}")
        beyond = [p for p in found.partings if p.beyond_noise_step is not None and p.role is not None]
        if beyond:
            earliest = min(beyond, key=lambda p: p.beyond_noise_step or 0)
            lines.append(f"by more than the noise from {earliest.unit} {earliest.beyond_noise_step} on: {earliest.tag}")
    parted = [p for p in found.partings if p.exact_step is not None]
    if parted:
        lines += ["", "metrics, in the order in which they first differ:"]
        for p in parted[:_SHOWN]:
            start = p.beyond_noise_step
            noise = (
                "within noise from step to step" + _on_average(p)
                if start is None
                else f"by more than the noise from {p.unit} {start} on"
            )
            if p.role in MACHINE or (p.role is None and _SPEED.search(p.tag)):
                noise = "a measure of time or speed"
            lines.append(f"  {p.unit} {p.exact_step}: {_values(p)}; {noise}")
        if len(parted) > _SHOWN:
            lines.append(f"  … and {len(parted) - _SHOWN} more")
    if found.settings:
        lines += ["", "settings that differ:", *(_setting(key, *values) for key, values in found.settings.items())]
    for name, only in ((found.a, found.only_a), (found.b, found.only_b)):
        if only:
            lines += ["", f"only in {name}: {', '.join(only[:_SHOWN])}{', …' if len(only) > _SHOWN else ''}"]
    return printable("\n".join([*lines, "", *(f"unknown: {what}" for what in found.not_known)]))


def _on_average(p: Parting) -> str:
    """What is added to a difference that is smaller than the noise, if it has one sign from the start to the end."""
    if p.shift is None:
        return ""
    way = "higher" if p.shift > 0 else "lower"
    return f", but {way} by {number(abs(p.shift), 2)} on average in the second run, in each fifth of the common steps"


def _setting(key: str, x: object, y: object) -> str:
    was, became = ("not set" if value is None else repr(value) for value in (x, y))
    return f"  {key.removeprefix('facts/')}: {was} -> {became}"


def _values(p: Parting) -> str:
    assert p.values is not None
    other = "" if p.other_tag == p.tag else f"{p.other_tag} "
    return f"{p.tag} {number(p.values[0], 8)} vs. {other}{number(p.values[1], 8)}"
