from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core.distinct import distinct, without
from postmortem.core.model import Finding
from postmortem.core.roles import role_of
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.reading import Reading
    from postmortem.core.series import Series
    from postmortem.core.view import View

_ALWAYS = 0.9
"""Share of the rows of another metric that hold the loss as well, from which on the two belong to the same rows."""
_NEARLY = 0.99
"""The share of the rows with a loss that hold a setting which is logged with each update."""
_FEW = 5
"""With fewer points before, a habit is not known."""
_GOES_ON = ("lr", "grad_norm", "loss_scale", "throughput", "step_time", "data_time", "memory")
"""Metrics of the training that are logged beside a loss; accuracies and rewards may have a rhythm of their own."""


class _Gap(NamedTuple):
    """Steps at which a companion has a value, and the series that has one elsewhere has none."""

    at: NDArray[np.int64]
    to_the_end: bool
    companion: str


@detector
class BlankValues(BaseDetector):
    """A loss or gradient norm that has no value (null, an empty cell) while the training continues.

    What it looks for: a metric that was logged with others in every row and from some row on is missing, although the
    others continue; single rows in which it is null or empty; a loss that is null or empty in all rows.

    Why it matters: many programs cannot write NaN and infinities and leave the value out: JSON encoders write null,
    pandas' to_csv an empty cell, some loggers nothing. A dead run then looks like a healthy one without a logged loss.

    How: the steps of the metric are compared with those of the learning rate, the gradient norm and times of the same
    source, and in a table with its rows. Metrics that are logged rarely by design (validation) share no rows with them.
    A row in which the learning rate or a count of updates is missing as well is none of the training. No statistics.
    A missing value does not prove a NaN, so the message says "likely".

    Typical causes: any cause of nan-onset, hidden by the encoder; a metric that the program stopped logging.

    What to try: log NaN by name (json.dumps writes NaN by default; to_csv(na_rep="nan")); look into the checkpoint
    after this step with `postmortem checkpoints`; replay the step.

    Known false positives: a multi-phase training whose later phase logs no loss under any name.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Minimum number of rows without a value at the end."""

        rows: int = 3

    code = "NAN005"
    name = "blank-values"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        losses = view.of("loss")
        for series in [*losses, *view.of("grad_norm", "val_loss")]:
            blanks = sum(r.blanks.get(series.tag, 0) for r in _readings(view, series.source))
            gap = None if len(series) < _FEW else self._gap(view, series, blanks)
            unreadable = sum(r.unreadable.get(series.tag, 0) for r in _readings(view, series.source))
            if gap is None or len(gap.at) <= unreadable:  # cells with text are no cells without a value
                continue
            dead = series is losses[0] and gap.to_the_end and blanks > 0 if losses else False
            how = "null or an empty cell" if blanks else "nothing"
            where, end = (
                (f"from step {gap.at[0]} on", f" to step {gap.at[-1]}")
                if gap.to_the_end
                else (f"first at step {gap.at[0]}", "")
            )
            yield self.found(
                series,
                int(np.searchsorted(series.step, gap.at[0])) - 1,
                f"{series.tag} has no value in {len(gap.at)} rows, {where}, while {gap.companion} goes on{end}: "
                f"it is likely NaN or Inf there, for which many programs write {how}",
                severity="error" if dead else "warning",
                step=int(gap.at[0]),
                evidence={"rows": len(gap.at), "last_step": gap.at[-1], "blank_cells": blanks, "beside": gap.companion},
            )
        if not losses:
            yield from self._never(view)

    def _never(self, view: View) -> Iterator[Finding]:
        """A loss that is blank from the first row on makes no series."""
        for reading in view.run.readings:
            for tag, blank in reading.blanks.items():
                if blank >= _FEW and role_of(tag) == "loss" and reading.row_steps is not None:
                    why = "it was never logged, or is NaN from the start, for which many programs write this"
                    yield Finding(
                        code=self.code,
                        name=self.name,
                        severity="warning",
                        message=f"{tag} is null or empty in all {blank} rows that have it: {why}",
                        tag=tag,
                        step=int(reading.row_steps[0]),
                        evidence={"rows": blank, "path": reading.path},
                    )

    def _gap(self, view: View, series: Series, blanks: int) -> _Gap | None:
        last = series.step[-1]
        others = [s for s in view.of("loss") if s.tag != series.tag and len(s) and s.rank == series.rank]
        next_phase = any(s.step[0] >= last for s in others)
        goes_on_elsewhere = series.role != "loss" or any(s.step[-1] > last for s in others)
        for name, steps, after in _companions(view, series):
            inside = steps[(steps >= series.step[0]) & (steps <= last)]
            there = np.isin(inside, series.step)
            if len(inside) < _FEW or there.mean() < _ALWAYS:
                continue
            if len(after) >= self.options.rows and not next_phase and (blanks >= len(after) or not goes_on_elsewhere):
                return _Gap(after, True, name)
            holes = _training_rows(view, series, inside[~there])
            if 0 < len(holes) <= blanks and not _rhythmic(holes):
                return _Gap(holes, False, name)
        return None


def _readings(view: View, source: str) -> list[Reading]:
    return [r for r in view.run.readings if r.source == source]


def _companions(view: View, series: Series) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
    """What is logged beside a series: its name, its steps, and those of them after the last point of the series.

    After it by the clock as well, where there is one: two tags of an event file may count different things.
    """
    beside = [s for s in view.series if s.tag != series.tag and s.source == series.source and s.rank == series.rank]
    for other in (s for s in beside if s.role in _GOES_ON and len(s)):
        if other.step is series.step or np.array_equal(other.step, series.step):
            continue  # neither is without the other anywhere
        later = (other.step > series.step[-1]) & ~(other.wall_time <= series.wall_time[-1])
        yield other.tag, other.step, distinct(other.step[later])
    rows = [r.row_steps for r in _readings(view, series.source) if r.row_steps is not None]
    if rows:
        filled = [s.step for s in beside if s.role not in (None, "epoch")]
        empty = without(np.concatenate(rows), np.concatenate([*filled, series.step]))
        yield "the table", distinct(np.concatenate([empty, series.step])), empty[empty > series.step[-1]]


def _training_rows(view: View, series: Series, holes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the rows without a value that hold the settings which else stand in every row with one.

    A row without its learning rate or its count of updates is none of the training: nothing was updated before it.
    """
    for other in view.series:
        beside = other.tag != series.tag and other.source == series.source and other.rank == series.rank
        if beside and (other.role == "lr" or _counts(other)) and np.isin(series.step, other.step).mean() > _NEARLY:
            holes = holes[np.isin(holes, other.step)]
    return holes


def _counts(series: Series) -> bool:
    """Whether the values are whole numbers that only grow, such as a number of updates."""
    value = series.value
    return series.role is None and bool((value == np.floor(value)).all() and (np.diff(value) > 0).all())


def _rhythmic(steps: NDArray[np.int64]) -> bool:
    """Whether steps come at one distance, as those of an evaluation."""
    apart = np.diff(steps)
    return len(apart) > 1 and bool((apart == apart[0]).all()) and apart[0] > 1
