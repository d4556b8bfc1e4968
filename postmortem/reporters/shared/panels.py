"""The curves of a run as one inline SVG for notebooks: the series of the HTML page over one step axis, no script."""

from __future__ import annotations

import math
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.reporters.shared.onset import onset, onset_place, onset_unit
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postmortem.core.report import Curve, RunReport

PANELS = {
    "loss": "loss",
    "val_loss": "loss",
    "grad_norm": "gradient norm",
    "lr": "learning rate",
    "loss_scale": "loss scale",
}
"""Which series share a panel, by their role; a series of another role has a panel under its tag."""
_HISTORY = (
    ("grad_norm/", "gradients by layer"),
    ("update_norm/", "updates by layer"),
    (("step_time", "data_time", "seconds/"), "seconds per step"),
    (("memory_mb", "gpu_memory_mb"), "memory (MB)"),
)
"""Which columns of the history of `postmortem run` share a panel, by how they begin."""
_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT, _GAP = 760, 76, 12, 30, 92, 22
_COLORS = ("#4a7fd4", "#2a8a3e", "#a05ab5", "#c77d1e", "#4aa5a5", "#8a6d5a")
_FAULT = "#d33"
_MOST_POINTS = 600  # drawn of each curve: about one for each pixel
_DECADES = 2.0  # of a panel whose values span more, the axis is logarithmic


def panel_of(curve: Curve) -> str:
    """The name of the panel that a curve is drawn in."""
    named = PANELS.get(curve.role) or next((name for start, name in _HISTORY if curve.tag.startswith(start)), None)
    return named or clean(curve.tag, 60)


def panels(run: RunReport) -> str:
    """All curves of the run's drawing, one panel under the other; the root finding and non-finite stretches are marked.

    Empty without a curve of two points.
    """
    curves = [c for c in run.drawing.curves if len(c.step) > 1] if run.drawing else []
    if not curves:
        return ""
    first, last = min(c.step[0] for c in curves), max(c.step[-1] for c in curves)
    axis = _Steps(first, max(last, first + 1))
    start = onset_place(run) if run.verdict in ("failed", "suspect") else None
    named = [(name, list(group)) for name, group in groupby(sorted(curves, key=_order), key=panel_of)]
    parts = [_panel(name, group, axis, _TOP + i * (_HEIGHT + _GAP)) for i, (name, group) in enumerate(named)]
    bottom = _TOP + len(named) * (_HEIGHT + _GAP) - _GAP
    parts.append(_step_axis(axis, bottom))
    if start is not None and first <= start <= last:
        x = axis.x(start)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" stroke="{_FAULT}" stroke-dasharray="4 3"/>'
        )
        parts.append(_text(x, 11, f"{onset_unit(run)} {onset(run)}", "middle", _FAULT))
    label = escape(f"{clean(run.name, 80)}: {', '.join(name for name, _ in named)} over {run.unit}s {first} to {last}")
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {bottom + 22}" width="{_WIDTH}" '
        f'style="max-width:100%;height:auto"><title>{label}</title>{"".join(parts)}</svg>'
    )


def _order(curve: Curve) -> tuple[int, str]:
    names = list(dict.fromkeys(PANELS.values()))
    name = panel_of(curve)
    return (names.index(name) if name in names else len(names)), name


class _Steps:
    """The step axis that all panels share."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def x(self, step: float) -> float:
        """Pixels from the left."""
        return _LEFT + (step - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> list[int]:
        """About six round steps."""
        size = 10 ** math.floor(math.log10(max(self.last - self.first, 1)))
        gap = next(
            (size // k for k in (5, 2, 1) if size // k and (self.last - self.first) // (size // k) <= 6), size * 2
        )
        return list(range(-(-self.first // gap) * gap, self.last + 1, gap))


def _panel(name: str, curves: Sequence[Curve], axis: _Steps, top: int) -> str:
    finite = [v for c in curves for v in c.value if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    logarithmic = low > 0 and math.log10(high) - math.log10(low) > _DECADES and curves[0].role != "lr"
    bottom, ceiling = (math.log10(low), math.log10(high)) if logarithmic else (low, high)
    span = ceiling / 2 - bottom / 2  # halves: the difference of two huge floats may overflow

    def y(value: float) -> float:
        at = math.log10(value) if logarithmic else value
        return top + _HEIGHT - 4 - ((at / 2 - bottom / 2) / span if span else 0.5) * (_HEIGHT - 8)

    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_HEIGHT}" fill="none" '
        'stroke="currentColor" stroke-opacity=".3"/>',
        _text(_LEFT - 6, top + 10, number(high), "end"),
        _text(_LEFT - 6, top + _HEIGHT - 2, number(low), "end") if span else "",
        _text(_LEFT, top - 4, name + (", log scale" if logarithmic else ""), "start"),
    ]
    for curve, color in zip(curves, _COLORS * (1 + len(curves) // len(_COLORS)), strict=False):
        parts += _lines(curve, axis, y, color)
        parts += [_band(axis, a, b, top) for a, b in _non_finite(curve)]
    if len(curves) > 1:
        names = " · ".join(clean(c.tag, 40) + (f" (rank {c.rank})" if c.rank >= 0 else "") for c in curves)
        parts.append(_text(_WIDTH - _RIGHT, top - 4, names, "end"))
    return "".join(parts)


def _lines(curve: Curve, axis: _Steps, y: Callable[[float], float], color: str) -> Iterator[str]:
    """The stretches of finite values."""
    every = max(1, len(curve.step) // _MOST_POINTS)
    points = list(zip(curve.step, curve.value, strict=True))
    kept = [p for i, p in enumerate(points) if i % every == 0 or not math.isfinite(p[1]) or i == len(points) - 1]
    for is_finite, group in groupby(kept, key=lambda p: math.isfinite(p[1])):
        stretch = list(group)
        if is_finite and len(stretch) == 1:
            yield f'<circle cx="{axis.x(stretch[0][0]):.1f}" cy="{y(stretch[0][1]):.1f}" r="2" fill="{color}"/>'
        elif is_finite:
            path = " ".join(f"{axis.x(step):.1f},{y(value):.1f}" for step, value in stretch)
            yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.4"/>'


def _non_finite(curve: Curve) -> Iterator[tuple[int, int]]:
    """First and last step of each stretch without a finite value."""
    for is_finite, group in groupby(zip(curve.step, curve.value, strict=True), key=lambda p: math.isfinite(p[1])):
        if not is_finite:
            steps = [step for step, _ in group]
            yield steps[0], steps[-1]


def _band(axis: _Steps, first: int, last: int, top: int) -> str:
    left, width = axis.x(first), max(axis.x(last) - axis.x(first), 2)
    shape = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT}"'
    return f'<rect {shape} fill="{_FAULT}" fill-opacity=".18"><title>not finite</title></rect>'


def _step_axis(axis: _Steps, bottom: int) -> str:
    return "".join(
        f'<line x1="{axis.x(s):.1f}" x2="{axis.x(s):.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="currentColor"/>'
        + _text(axis.x(s), bottom + 16, f"{s:,}" if s else "step 0", "middle")
        for s in axis.ticks()
    )


def _text(x: float, y: float, words: str, anchor: str, color: str = "currentColor") -> str:
    style = f'font-size="11" font-family="system-ui,sans-serif" text-anchor="{anchor}" fill="{color}"'
    return f'<text x="{x:.1f}" y="{y}" {style}>{escape(words)}</text>'
