"""The numbers that the page's charts draw, as compact JSON. The drawing itself is in ``page/charts.js``."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from postmortem.core.model import SEVERITIES
from postmortem.reporters.shared.onset import onset_place
from postmortem.reporters.shared.outline import folded
from postmortem.reporters.shared.panels import panel_of
from postmortem.reporters.shared.words import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.core.model import Finding
    from postmortem.core.report import Curve, RunReport

_MOST_MARKS = 12  # findings marked in a chart; more hide the curves
_POINTS = 20_000  # points of the whole page: about 300 KB


def chart_data(runs: Sequence[RunReport]) -> str:
    """The curves and marks of `runs`, by their index, as JSON that can stand in a ``<script>`` element.

    The more points all runs have together, the fewer of each are kept, those around the root finding first.
    """
    points = sum(len(curve.step) for run in runs if run.drawing for curve in run.drawing.curves)
    every = max(1, math.ceil(points / _POINTS))
    text = json.dumps([_run(run, every) for run in runs], separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def has_chart(run: RunReport) -> bool:
    """Whether there is a curve to draw."""
    return run.drawing is not None and any(len(curve.step) > 1 for curve in run.drawing.curves)


def _run(run: RunReport, every: int) -> dict[str, Any] | None:
    if run.drawing is None:
        return None
    bad = run.verdict in ("failed", "suspect")
    start = onset_place(run) if bad else None
    return {
        "name": clean(run.name, 80),
        "series": [_series(c, start, every) for c in run.drawing.curves],
        "unit": run.unit,
        "onset": start,
        "band": _band(run, start) if bad else None,
        "marks": [
            [run.drawing.places.get(f.id, f.step), clean(f.name), f.severity, clean(f.message, 160), clean(f.code)]
            for f in _marked(run.findings)
        ],
        "restarts": list(run.drawing.restarts[:50]),
        "checkpoints": [[c.step, c.finite] for c in run.checkpoints if c.step is not None][:200],
    }


def _band(run: RunReport, start: int | None) -> list[int] | None:
    """First and last step of the fault: to the last step of what follows from the root, or to the end of a metric that
    stays non-finite."""
    root = next(iter(folded(run)), None)
    if start is None or root is None or run.drawing is None:
        return None
    found = [*root.members, *(f for fold in root.consequences for f in fold.members)]
    ends = [
        f.end_step for f in found if f.end_step is not None and f.tag is not None and f.id not in run.drawing.places
    ]
    for curve in run.drawing.curves:
        after = [v for step, v in zip(curve.step, curve.value, strict=True) if step >= start]
        if after and not any(map(math.isfinite, after)):
            ends.append(curve.step[-1])
    end = max(ends, default=start)
    return [start, end] if end > start else None


def _marked(findings: Sequence[Finding]) -> list[Finding]:
    """The first finding of each step, roots and errors first."""
    ordered = sorted(
        (f for f in findings if f.step is not None),
        key=lambda f: (f.because_of is not None, SEVERITIES.index(f.severity), f.step),
    )
    first: dict[int | None, Finding] = {}
    for finding in ordered:
        first.setdefault(finding.step, finding)
    return list(first.values())[:_MOST_MARKS]


def _series(curve: Curve, start: int | None, every: int) -> dict[str, Any]:
    kept = [i for i in range(len(curve.step)) if i % every == 0 or _matters(curve, i, start)]
    steps = [curve.step[i] for i in kept]
    rank = f" (rank {curve.rank})" if curve.rank >= 0 else ""
    return {
        "panel": panel_of(curve),
        "label": clean(curve.tag, 60) + rank,
        "step": [b - a for a, b in zip([0, *steps], steps, strict=False)],
        "value": [_number(curve.value[i]) for i in kept],
    }


def _matters(curve: Curve, i: int, start: int | None) -> bool:
    """The ends, the points next to the root finding, and the first non-finite point of each stretch."""
    if i in (0, len(curve.step) - 1) or (start is not None and abs(curve.step[i] - start) <= 2):
        return True
    return not math.isfinite(curve.value[i]) and math.isfinite(curve.value[i - 1])


def _number(value: float) -> float | int | str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
