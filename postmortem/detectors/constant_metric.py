from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.printable import number
from postmortem.core.roles import plain_name
from postmortem.core.stats import median
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.frozen import constant_from, digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_VARYING = ("loss", "val_loss", "grad_norm", "layer_grad_norm", "perplexity", "reward")
_SCORES = ("accuracy", "val_accuracy")
_UNREWARDED = 50
"""Points without a reward from which a run is suspect: a sparse one may come late."""
_RECORD = re.compile(r"(?:^|[ /])(?:best|record)\b|\bso far\b")
"""Names of the best value up to now, which stays as it is until a better one comes."""
_EXTREME = re.compile(r"(?:^|[ /])(?:max|min|maximum|minimum)(?=$|[ /])")
"""Names of the highest or lowest of many values, which may be a limit of the task."""
_FIRST_POINTS, _LONG, _GOOD = 0.05, 50, 0.95
"""The share of the points in which a score may still move that counts as one that never did, where so many more follow;
a score from which on a model may have learned all that there is."""
_FEW_ROWS = 30
"""Rows in which a number of few digits may stay the same because it changes slowly."""
_CONVERGED = 1e-4
"""The share of its first value at which a loss that stands still has done its work."""
_DECIMALS, _AT_REST = 7, 8
"""Printed decimals below which rounding is looked at, and the points before that are a unit of the last of them off."""
_TAIL = 10
"""A log that begins after so many times the steps that it shows is the tail of a training."""


@detector
class ConstantMetric(BaseDetector):
    """A metric that should vary is bit-identical over a large part of the run.

    What it looks for: a loss, gradient norm, score or reward that repeats exactly the same number until the end; a
    reward of zero or less that is the same from the first point to the last, where no other reward moves.

    Why it matters: either the number is not recomputed (a stale variable, a cached evaluation), or the model does not
    change.

    How: exact equality of the logged values over the last `share` of the points, at least `points` of them; values with
    so few printed digits that rounding explains the repetition are ignored, and so are losses that came to rest there
    in steps of their last printed digit.

    Typical causes: a metric that is never reset or updated, an evaluation on an old copy of the model, predictions of a
    single class, frozen parameters, an optimizer that was given the wrong parameters.

    Severity: info for a loss below a ten-thousandth of its first value, which may have converged.

    A score that moves in its first points only (5 % of them), and then not for 50 and more, is reported below 95 %.

    What to try: print the metric's inputs at two steps; compare the weights of two checkpoints.

    Known false positives: a gradient norm logged after clipping is constant at the clipping limit (which usually has
    too few digits to be reported). Saturated scores (1, 100 %) are not reported, nor is -1 in place of a score, nor a
    validation score that settles after the training loss has fallen to a hundredth of its start, nor the best value so
    far (`best_reward`) that is not improved any more, nor the highest or lowest reward of many episodes, which may be
    a limit of the task.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Fraction and minimum number of points that are identical; minimum number of digits of the value."""

        share: float = 0.3
        points: int = 8
        digits: int = 3

    code = "LOS004"
    name = "constant-metric"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        watched = [s.finite for s in view.of(*_VARYING, *_SCORES) if len(s.finite) >= self.options.points]
        if not watched:
            raise NotChecked(f"no loss, gradient norm or score with {self.options.points} points")
        yield from self._never_rewarded(view)
        for series in watched:
            at = constant_from(series)
            rows = len(series) - at
            if series.role == "val_accuracy" and at > 0 and _memorised(view, int(series.step[at])):
                continue  # without a training loss, the predictions change no more
            if rows < max(self.options.points, self.options.share * len(series)) or not self._telling(series, at):
                continue
            since = "since its first point" if at == 0 else f"from step {series.step[at]} on"
            one = _one_class(view, series, at) if series.role in _SCORES else ""
            converged = _converged(view, series)
            if converged:
                one = f"; it began at {number(series.value[0])} and may have converged"
            yield self.found(
                series,
                at,
                f"{series.tag} is exactly {number(series.value[-1])} {since}, in {rows} of {len(series)} points{one}",
                severity="info" if converged else None,
                end=len(series) - 1,
                evidence={"value": series.value[-1], "rows": rows, "points": len(series)},
            )

    def _never_rewarded(self, view: View) -> Iterator[Finding]:
        """A reward that is the same at every point, of a run in which no other one moves: nothing is learned."""
        rewards = [s.finite for s in view.of("reward")]
        still = [s for s in rewards if len(s) >= self.options.points]
        if not still or any(s.value.min() != s.value.max() for s in rewards if len(s) > 1):
            return
        series = max(still, key=len)
        value, span = float(series.value[0]), int(series.step[-1] - series.step[0])
        late = series.step[0] > _TAIL * span > 0  # only the tail of a long training
        if value > 0 or (len(series) < _UNREWARDED and not late):
            return
        yield self.found(
            series,
            0,
            f"{series.tag} is {number(value)} at all {len(series)} points: possibly the task is never solved and "
            "nothing is learned",
            end=len(series) - 1,
            evidence={"value": value, "rows": len(series), "points": len(series)},
        )

    def _telling(self, series: Series, at: int) -> bool:
        """Whether the repetition cannot be explained by saturation or rounding, or by what the name says."""
        value = float(series.value[-1])
        if at > 0 and _RECORD.search(plain_name(series.tag)):
            return False
        if series.role == "reward" and _EXTREME.search(plain_name(series.tag)):
            return False
        if series.role in _SCORES:
            # a score of zero has not begun yet; one below zero stands for none (COCO's -1: no such objects)
            saturated = value in (0.0, 1.0, 100.0, -1.0)
            best = float(np.max(series.value[:at], initial=-np.inf))
            return not saturated and (at == 0 or value < 0.95 * best or _never_moved(series, at))
        if series.role == "reward" and at == 0 and value <= 0:
            return False  # _never_rewarded
        if series.role == "loss" and value == 0 and at > 0:
            return False  # masked-nonfinite
        few = at == 0 and len(series) < _FEW_ROWS  # in a table of rounded numbers, it may not have moved yet
        return digits(value) >= int(self.options.digits) + few and not _settled(series, at)


def _converged(view: View, series: Series) -> bool:
    """Whether a loss, or that of which it is a part, has fallen so far that an optimizer of second order, or the
    precision of its numbers, ends there."""
    if series.role not in ("loss", "val_loss"):
        return False
    whole = view.main(series.role)
    courses = [s.value for s in (series, None if whole is None else whole.finite) if s is not None and len(s)]
    return any(0 < value[-1] < _CONVERGED * value[0] for value in courses)


def _settled(series: Series, at: int) -> bool:
    """Whether a value came to rest in steps of its last printed digit, and stood at the one before for some time."""
    unit = next((10.0**-d for d in range(1, _DECIMALS) if (np.round(series.value, d) == series.value).all()), 0.0)
    before = series.value[max(0, at - _AT_REST) : at]
    return len(before) == _AT_REST and bool(np.abs(before - series.value[-1]).max() < 1.5 * unit)


def _never_moved(series: Series, at: int) -> bool:
    """Whether a score that leaves much to be wished for stands still from the first points of a long training on."""
    value, few = float(series.value[-1]), at <= _FIRST_POINTS * len(series)
    return few and len(series) - at >= _LONG and value < _GOOD * (100 if series.value.max() > 1 else 1)


def _one_class(view: View, series: Series, at: int) -> str:
    """What a score that stands still while the loss still falls looks like, in words; "" if the loss does not."""
    loss = view.main("loss") if series.role == "accuracy" else view.main("val_loss")
    values = np.empty(0) if loss is None else loss.finite.value[loss.finite.step >= series.step[at]]
    moves = len(values) >= _LONG and len(distinct(values)) > 0.5 * len(values)
    return f", while {loss.tag} still changes: possibly all predictions are of one class" if loss and moves else ""


def _memorised(view: View, step: int) -> bool:
    """Whether the training loss is below a hundredth of its start from a step on."""
    loss = view.main("loss")
    if loss is None:
        return False
    x = loss.finite
    late = x.value[x.step >= step]
    return len(late) > 0 and bool(x.value[0] > 0 and median(late) < 0.01 * x.value[0])
