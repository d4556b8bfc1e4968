"""The main series around the root finding: values before and at its step, and a small curve of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.report import Around
from postmortem.core.stats import row_medians

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

CURVE_POINTS = 60
_ROLES = ("loss", "val_loss", "grad_norm", "lr", "loss_scale")


def around(view: View, root: Finding | None) -> tuple[Around, ...]:
    """Loss, validation loss, gradient norm, learning rate and loss scale before and at the step of `root`.

    The finding's own series comes first where it has none of these roles. Without a finding: the last values. Of a
    finding that compares two steps, as a validation loss that is best at one and ends at another, those of these two.
    """
    chosen: list[Series] = [s for s in (view.main(role) for role in _ROLES) if s is not None and len(s)]
    if root is not None and root.tag is not None:
        own = next((s for s in view.series if s.tag == root.tag and root.rank in (None, s.rank)), None)
        if own is not None and len(own):
            chosen = [own, *(s for s in chosen if s.tag != own.tag and s.role != own.role)]
    step = None if root is None else root.step
    best, end = (None, None) if root is None else (root.evidence.get(key) for key in ("best_step", "end_step"))
    if best is not None and end is not None:
        return tuple(_row(s, _upto(s, best), _upto(s, end)) for s in chosen)
    return tuple(_one(s, step) for s in chosen)


def _upto(series: Series, step: int) -> int:
    """The last row at or before a step."""
    return int(np.searchsorted(series.step, step, side="right")) - 1


def _one(series: Series, step: int | None) -> Around:
    before = len(series) - 2 if step is None else int(np.searchsorted(series.step, step, side="left")) - 1
    at = before + 1 if step is None else int(np.searchsorted(series.step, step, side="right")) - 1
    if at <= before:  # nothing logged exactly at the step: the next point after it
        at = before + 1 if before + 1 < len(series) else before
    return _row(series, before, at)


def _row(series: Series, before: int, at: int) -> Around:
    return Around(
        tag=series.tag,
        role=series.role or "",
        before_step=int(series.step[before]) if before >= 0 else None,
        before=float(series.value[before]) if before >= 0 else None,
        at_step=int(series.step[at]) if at >= 0 else None,
        at=float(series.value[at]) if at >= 0 else None,
        curve=_curve(series),
    )


def _curve(series: Series) -> tuple[float, ...]:
    """At most CURVE_POINTS values over the whole run: per bucket a non-finite one, or the farthest from its median."""
    value = series.value
    if len(value) <= CURVE_POINTS:
        return tuple(value.tolist())
    edges = np.linspace(0, len(value), CURVE_POINTS + 1).astype(int)
    start, size = edges[:-1], np.diff(edges)
    curve = np.empty(CURVE_POINTS)
    for length in distinct(size):  # of two lengths that differ by one
        alike = size == length
        part = value[start[alike, None] + np.arange(length)]
        finite = np.isfinite(part)
        whole = np.where(finite, part, 0.0)
        far = np.abs(whole - row_medians(whole)[:, None]).argmax(axis=1)
        chosen = np.where(finite.all(axis=1), far, np.argmin(finite, axis=1))
        curve[alike] = part[np.arange(len(part)), chosen]
    return tuple(curve.tolist())
