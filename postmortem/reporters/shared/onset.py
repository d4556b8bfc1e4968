"""Where the root finding of a run is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.reporters.shared.outline import folded

if TYPE_CHECKING:
    from postmortem.core.report import RunReport


def onset(run: RunReport) -> int | None:
    """The step of the root finding; an epoch where `onset_unit` is one."""
    folds = folded(run)
    return folds[0].first.step if folds else None


def onset_unit(run: RunReport) -> str:
    """What the `onset` counts, "step" or "epoch"."""
    folds = folded(run)
    return folds[0].first.unit if folds else "step"


def onset_place(run: RunReport) -> int | None:
    """The `onset` on the axis of the run's curves, which counts steps wherever the log prints some."""
    folds = folded(run)
    placed = run.drawing.places.get(folds[0].first.id) if folds and run.drawing else None
    return onset(run) if placed is None else placed
