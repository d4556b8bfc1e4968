"""Words and marks that the formats for people share: safe text, short numbers, sparklines."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_MARKS = {math.inf: "↑", -math.inf: "↓"}
NAN_MARK = "×"
MARKS = frozenset([NAN_MARK, *_MARKS.values()])
"""What stands in a sparkline for a value that is not finite."""


def clean(text: object, limit: int = 0) -> str:
    """`text` on one line without characters that a terminal or a page would obey.

    Control characters, escape sequences, direction overrides and lone surrogates become visible escapes
    such as ``\\x1b``. With a `limit`, what is longer ends in an ellipsis.
    """
    line = str(text).strip()
    if limit and len(line) > limit:
        line = line[: limit - 1] + "…"
    return line if line.isprintable() else "".join(c if c.isprintable() else _visible(c) for c in line)


def squeezed(text: object, limit: int = 0) -> str:
    """`text` of a log line, cleaned, its columns of spaces narrowed to one."""
    return clean(re.sub(r"[ \t]{2,}", " ", str(text)), limit)


def _visible(char: str) -> str:
    if char == "\n":
        return " ⏎ "
    return " " if char in "\t\r\xa0\u2009\u202f\u3000" else char.encode("unicode_escape").decode("ascii")


def number(value: float | None) -> str:
    """A number as people read it, to four significant digits; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"


def count(n: int, noun: str) -> str:
    """``count(1, "run")`` is "1 run", ``count(1200, "run")`` is "1,200 runs"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}es" if noun.endswith(("s", "x")) else f"{n:,} {noun}s"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first `most` names and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def thinned(curve: Sequence[float], width: int) -> list[float]:
    """At most `width` values with the same course: of each stretch a non-finite value if it has one, else the outermost."""
    n = len(curve)
    if n <= width:
        return list(curve)
    middle = sorted(v for v in curve if math.isfinite(v)) or [0.0]
    centre = middle[len(middle) // 2]
    stretches = (curve[i * n // width : (i + 1) * n // width] for i in range(width))
    return [next((v for v in s if not math.isfinite(v)), None) or max(s, key=lambda v: abs(v - centre)) for s in stretches]


def heights(curve: Sequence[float], *, linear: bool = False) -> list[float | None]:
    """Every value as a height from 0 to 1, None where it is not finite.

    Positive values that span more than a factor of five are placed by their logarithm, so that an explosion or a high
    start does not flatten everything else; unless `linear` is asked for, as learning rates are drawn.
    """
    finite = [v for v in curve if math.isfinite(v)]
    if not finite:
        return [None] * len(curve)
    low, high = min(finite), max(finite)
    scale = math.log if not linear and low > 0 and high > 5 * low else float
    bottom, top = scale(low), scale(high)
    span = top / 2 - bottom / 2  # halves: the difference of two huge floats may overflow
    return [None if not math.isfinite(v) else 0.5 if not span else (scale(v) / 2 - bottom / 2) / span for v in curve]


def sparkline(curve: Sequence[float], width: int = 24, *, linear: bool = False) -> str:
    """The course of a series in block characters; × stands for NaN, ↑ and ↓ for the infinities."""
    values = thinned(curve, width)
    levels = heights(values, linear=linear)
    return "".join(_MARKS.get(v, NAN_MARK) if h is None else _BARS[round(h * (len(_BARS) - 1))] for v, h in zip(values, levels, strict=True))
