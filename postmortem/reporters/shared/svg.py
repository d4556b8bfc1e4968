"""A small curve as inline SVG, drawn from the few points of an `Around`."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.reporters.shared.words import clean, heights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.report import Around

_WIDTH, _HEIGHT, _EDGE = 360, 64, 4


def curve(around: Around) -> str:
    """The curve of one series: a line through finite values, a red band over non-finite ones, and its range."""
    values = around.curve
    finite = [v for v in values if math.isfinite(v)]
    if len(values) < 3:
        return ""
    low, high = (number(min(finite)), number(max(finite))) if finite else ("–", "–")
    bad = f"{len(values) - len(finite)} of {len(values)} shown points not finite"
    label = f"{clean(around.tag, 80)}: {low} to {high}, {bad}"
    step = (_WIDTH - 2 * _EDGE) / max(len(values) - 1, 1)
    x = [_EDGE + i * step for i in range(len(values))]
    shares = heights(values, linear=around.role == "lr")
    y = [None if h is None else _HEIGHT - _EDGE - h * (_HEIGHT - 2 * _EDGE) for h in shares]
    gaps = _stretches([v is None for v in y])
    bands = "".join(_band(max(x[a] - step / 2, 0), min(x[b - 1] + step / 2, _WIDTH)) for a, b in gaps)
    lines = "".join(_line([(x[i], y[i]) for i in range(a, b)]) for a, b in _stretches([v is not None for v in y]))
    ticks = [(10, high), (_HEIGHT - 2, low)] if high != low else [(_HEIGHT // 2 + 3, low)]
    text = "".join(
        f'<text x="{_WIDTH + 4}" y="{at}" font-size="10" fill="currentColor" fill-opacity=".75">{value}</text>'
        for at, value in ticks
    )
    return (
        f'<svg role="img" viewBox="0 0 {_WIDTH + 60} {_HEIGHT}" width="{_WIDTH + 60}" height="{_HEIGHT}" '
        f'aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{bands}{lines}{text}</svg>"
    )


def _band(left: float, right: float) -> str:
    return f'<rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="{_HEIGHT}" fill="#d33" fill-opacity=".35"/>'


def _line(points: Sequence[tuple[float, float | None]]) -> str:
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2" fill="#4a7fd4"/>'
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    return f'<polyline points="{path}" fill="none" stroke="#4a7fd4" stroke-width="1.5"/>'


def _stretches(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yields start and end (exclusive) of every run of True."""
    start = None
    for i, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = i
        elif not flag and start is not None:
            yield start, i
            start = None
