"""Where a series becomes non-finite, and when that is harmless."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.printable import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.model import Event, Severity
    from postmortem.core.run import Restart
    from postmortem.core.series import Series
    from postmortem.core.view import View

ALWAYS_DEFINED = ("loss", "val_loss", "grad_norm", "layer_grad_norm", "lr", "loss_scale", "perplexity")
_BEST = re.compile(r"(?:^|[\W_])best(?:[\W_]|$)", re.IGNORECASE)
"""Best values start as infinities: there is none before the first evaluation."""


@dataclass(frozen=True, slots=True)
class Onset:
    """Point `at` is the first non-finite one, `before` the last finite one before it (None if there is none)."""

    series: Series
    at: int
    before: int | None
    count: int
    recovered: bool
    severity: Severity


def onsets(view: View, kind: str) -> list[Onset]:
    """The first NaN ("nan") or infinity ("inf") of every series, unless it is harmless."""
    found = []
    for series in view.series:
        bad = np.isnan(series.value) if kind == "nan" else np.isinf(series.value)
        if bad.any() and (onset := _onset(view, series, bad)):
            found.append(onset)
    return found


def _onset(view: View, series: Series, bad: NDArray[np.bool_]) -> Onset | None:
    finite = np.isfinite(series.value)
    count = int(bad.sum())
    if not finite.any():
        grave = series.role in ALWAYS_DEFINED and not _BEST.search(series.tag)
        return Onset(series, int(np.argmax(bad)), None, count, False, "error" if grave else "info")
    first_finite = int(np.argmax(finite))
    if series.role != "loss" or _BEST.search(series.tag):
        # scores before the first evaluation, the gradient norm before the first update
        bad = bad & (np.arange(len(bad)) > first_finite)
        count = int(bad.sum())
    if not count or scaler_handled(view, series):
        return None
    at = int(np.argmax(bad))
    before = np.flatnonzero(finite[:at])
    recovered = bool(finite[at:].any())
    return Onset(series, at, int(before[-1]) if len(before) else None, count, recovered, "error")


def describe(onset: Onset, what: str) -> tuple[str, dict[str, Any]]:
    """The sentence and the evidence of an onset; `what` is the word for the non-finite value."""
    series, at = onset.series, onset.at
    evidence: dict[str, Any] = {"value": series.value[at], "count": onset.count, "points": len(series)}
    if onset.before is None:
        text = f"{series.tag} is {what} since its first point (step {series.step[at]})"
    else:
        value, step = series.value[onset.before], series.step[onset.before]
        evidence |= {"before": value, "last_finite_step": step}
        text = f"{series.tag} is {what} at step {series.step[at]}; it was {number(value)} at step {step}"
    if onset.recovered:
        text += f"; {onset.count} of {len(series)} points are {what}, then it recovers"
    elif at < len(series) - 1:
        text += " and stays non-finite"
    return text, evidence


def reported(view: View, kind: str) -> Event | None:
    """The first message of a detector inside the program (fairseq's) that an output is not finite."""
    return next(
        (e for e in view.events if e.kind == "nan-detector" and str(e.fields.get("value", "")).lower() == kind), None
    )


def overwritten_onset(view: View, restart: Restart) -> tuple[str, int] | None:
    """(tag, step) of the first non-finite loss or gradient norm among the points that a restart logged again."""
    for stream in view.run.streams:
        if restart not in stream.restarts:
            continue
        points = stream.points
        before = stream.segment == stream.restarts.index(restart)
        rows = np.flatnonzero(before & ~np.isfinite(points.value) & (points.take("step", slice(None)) >= restart.after))
        watched = [view.run.roles.get(tag) in ("loss", "grad_norm") for tag in points.tags]
        for row in rows.tolist():
            if watched[points.code[row]]:
                return points.tags[points.code[row]], int(points.take("step", row))
    return None


def scaler_handled(view: View, series: Series) -> bool:
    """Whether non-finite gradient norms are the skipped steps of an active loss scaler (PyTorch AMP skips and halves).

    They are where a loss scale is logged that did not collapse, the loss stayed finite, the bad points are few,
    scattered, and the series ends finite.
    """
    if series.role not in ("grad_norm", "layer_grad_norm"):
        return False
    scale, loss = view.main("loss_scale"), view.main("loss")
    if scale is None or (loss is not None and not np.isfinite(loss.value).all()):
        return False
    levels = scale.finite.value
    if not len(levels) or len(np.unique(levels)) < 2:
        return False
    bad = ~np.isfinite(series.value)
    runs = np.diff(np.flatnonzero(np.concatenate([[True], bad[1:] != bad[:-1], [True]])))
    longest = int(runs[0 if bad[0] else 1 :: 2].max(initial=0))
    return bool(bad.mean() < 0.2 and longest <= 20 and not bad[-3:].all())
