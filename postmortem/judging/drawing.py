"""The curves and restarts that the HTML page draws of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.report import Curve, Drawing
from postmortem.core.view import View

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.report import RunReport
    from postmortem.core.run import Run
    from postmortem.core.series import Series

_ROLES = (("loss", "val_loss"), ("grad_norm",), ("lr",), ("loss_scale",))
_OF_A_HISTORY = ("grad_norm/", "update_norm/", ("step_time", "data_time", "seconds/"), ("memory_mb", "gpu_memory_mb"))
"""Groups of columns of the history of `postmortem run`, by how they begin; it alone has seconds of the passes."""
_LINES = 4  # series of one chart; more cannot be told apart
_WHOLE = 360  # points of a series over the whole run
_NEAR = 120  # points on each side of the root finding that are kept one by one


def drawing(run: Run, report: RunReport) -> Drawing:
    """The curves and restarts of a run, for a page.

    Loss and validation loss, gradient norm, learning rate and loss scale, and the series of the root finding where it
    is none of these; without any, the longest series.
    """
    view = View(run)
    chosen = [s for roles in _ROLES for s in view.of(*roles)[:_LINES]]
    root = next((f for f in report.findings if f.because_of is None), None)
    if root is not None and root.tag not in {s.tag for s in chosen}:
        chosen += [s for s in view.series if s.tag == root.tag and root.rank in (None, -1, s.rank)][:_LINES]
    chosen = chosen or sorted(view.series, key=len, reverse=True)[:1]
    chosen += [s for s in _of_a_history(view) if not any(s is c for c in chosen)]
    places = {f.id: _place(view, f) for f in report.findings if f.unit == "epoch" and f.step is not None}
    onset = None if root is None else places.get(root.id, root.step)
    return Drawing(
        curves=tuple(_curve(s, onset) for s in chosen if len(s)),
        restarts=tuple(sorted({restart.after for restart in view.restarts})),
        places=places,
    )


def _place(view: View, finding: Finding) -> int:
    """The step that orders a finding among the others, if its `step` is an epoch."""
    assert finding.step is not None
    for series in view.series:
        if series.tag == finding.tag and series.epoch is not None and (series.epoch == finding.step).any():
            return int(series.step[series.epoch == finding.step][0])
    return int(finding.step)


def _of_a_history(view: View) -> list[Series]:
    """Norms per layer, seconds and memory, as `postmortem run` measured them; of many layers the largest ones."""
    if not any(s.tag.startswith("seconds/") for s in view.series):
        return []
    found: list[Series] = []
    for beginnings in _OF_A_HISTORY:
        group = [s for s in view.series if s.tag.startswith(beginnings)]
        if isinstance(beginnings, str):
            group = sorted(group, key=_largest, reverse=True)[:_LINES]
        found += group[: _LINES + 2]
    return found


def _largest(series: Series) -> float:
    """A value that is not finite counts as the largest."""
    value = np.abs(series.value)
    return float(np.max(np.where(np.isfinite(value), value, np.inf), initial=0.0))


def _curve(series: Series, onset: int | None) -> Curve:
    shown = series.thinned(_WHOLE)
    step, value = shown.step, shown.value
    if onset is not None and len(shown) < len(series):
        at = int(np.searchsorted(series.step, onset))
        near = series.take(slice(max(at - _NEAR, 0), at + _NEAR))
        before, after = step < near.step[0], step > near.step[-1]
        step = np.concatenate([step[before], near.step, step[after]])
        value = np.concatenate([value[before], near.value, value[after]])
    return Curve(
        tag=series.tag,
        role=series.role or "",
        rank=series.rank,
        step=tuple(step.tolist()),
        value=tuple(value.tolist()),
    )
