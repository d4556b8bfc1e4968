"""Helpers of the formats for people: safe text, counts, sparklines."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.report import RunReport

_BARS = "▁▂▃▄▅▆▇█"
_MARKS = {math.inf: "↑", -math.inf: "↓"}
NAN_MARK = "×"
MARKS = frozenset([NAN_MARK, *_MARKS.values()])
"""The marks of non-finite values in a sparkline."""


def clean(text: object, limit: int = 0) -> str:
    """`text` on one line, without characters that a terminal or a page would interpret.

    Control characters, escape sequences, direction overrides and lone surrogates become visible escapes,
    such as ``\\x1b``. With a `limit`, longer text ends in an ellipsis.
    """
    line = str(text).strip()
    if limit and len(line) > limit:
        line = line[: limit - 1] + "…"
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else _visible(c) for c in line)


def squeezed(text: object, limit: int = 0) -> str:
    """`text` of a log line, cleaned; several spaces become one."""
    return clean(re.sub(r"[ \t]{2,}", " ", str(text)), limit)


def _visible(char: str) -> str:
    if char == "\n":
        return " ⏎ "
    return " " if char in "\t\r\xa0\u2009\u202f\u3000" else char.encode("unicode_escape").decode("ascii")


def count(n: int, noun: str) -> str:
    """``count(1, "run")`` is "1 run", ``count(1200, "run")`` is "1,200 runs"."""
    if n != 1:
        noun += "es" if noun.endswith(("s", "x")) else "s"
    return f"{n:,} {noun}"


def thinned(curve: Sequence[float], width: int) -> list[float]:
    """At most `width` values: for each stretch a non-finite value if it has one, else the most extreme value."""
    n = len(curve)
    if n <= width:
        return list(curve)
    middle = sorted(v for v in curve if math.isfinite(v)) or [0.0]
    centre = middle[len(middle) // 2]

    def chosen(stretch: Sequence[float]) -> float:
        return next((v for v in stretch if not math.isfinite(v)), None) or max(stretch, key=lambda v: abs(v - centre))

    return [chosen(curve[i * n // width : (i + 1) * n // width]) for i in range(width)]


def heights(curve: Sequence[float], *, linear: bool = False) -> list[float | None]:
    """Each value as a height from 0 to 1, None for non-finite values.

    Positive values that span more than a factor of five are placed by their logarithm, so that an explosion or a high
    start does not flatten everything else. `linear` turns that off, as for learning rates.
    """
    finite = [v for v in curve if math.isfinite(v)]
    if not finite:
        return [None] * len(curve)
    low, high = min(finite), max(finite)
    scale = math.log if not linear and low > 0 and high > 5 * low else float
    bottom, top = scale(low), scale(high)
    span = top / 2 - bottom / 2  # halves: the difference of two huge floats may overflow

    def height(v: float) -> float | None:
        if not math.isfinite(v):
            return None
        return (scale(v) / 2 - bottom / 2) / span if span else 0.5

    return [height(v) for v in curve]


def sparkline(curve: Sequence[float], width: int = 24, *, linear: bool = False) -> str:
    """A series as block characters; × is NaN, ↑ and ↓ are the infinities."""
    values = thinned(curve, width)
    levels = heights(values, linear=linear)
    pairs = zip(values, levels, strict=True)
    return "".join(_MARKS.get(v, NAN_MARK) if h is None else _BARS[round(h * (len(_BARS) - 1))] for v, h in pairs)


ENDED = {
    "completed": "completed",
    "crashed": "crashed",
    "out-of-memory": "ran out of memory",
    "killed": "killed",
    "time-limit": "reached its time limit",
    "preempted": "preempted",
    "interrupted": "interrupted or cancelled from outside",
    "hung": "hung",
    "cut": "log ends in the middle",
    "running": "may still be running",
    "unknown": "end of run: unknown",
}


def end_of(run: RunReport) -> str:
    """How it ended; of one that `postmortem run` ended itself, that."""
    told = any(e.source == "watch" and e.fields.get("stopped") for e in run.events)
    return "ended by `postmortem run --stop`" if told and run.ended == "interrupted" else ENDED[run.ended]
