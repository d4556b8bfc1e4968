"""Where a series becomes non-finite, and when that is harmless."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.core.stats import groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.core.model import Event, Severity
    from postmortem.core.run import Restart
    from postmortem.core.series import Series
    from postmortem.core.view import View

ALWAYS_DEFINED = ("loss", "val_loss", "grad_norm", "layer_grad_norm", "lr", "loss_scale", "perplexity")
_APART = 10
"""Finite points per non-finite one after which a series had recovered."""
_LONGEST, _OPEN, _WORKS, _FEW = 20, 3, 0.2, 0.05
"""Limits of skipped steps: in a row, in a row at the end of a log, and as a share of all steps; a share that is few."""
_LEVEL = 25
"""Finite points in a row that show a level."""
_AGAIN, _RARE = 2, 0.1
"""Finite evaluations after the last non-finite one, and the share of such ones, that make them an episode."""
GRADIENTS = ("grad_norm", "layer_grad_norm")
_BEST = later(r"(?:^|[\W_])best(?:[\W_]|$)", re.IGNORECASE)
"""Best values start as infinities: there is none before the first evaluation."""
_NO_VARIANCE = re.compile(r"(?:^|[\W_])explained_?var", re.IGNORECASE)
"""0/0 by definition as long as all returns are equal, as before the first success where rewards are rare."""


@dataclass(frozen=True, slots=True)
class Onset:
    """Point `at` is the first non-finite one, `before` the last finite one before it (None if there is none).

    `recovered`: finite points follow. `earlier`: steps of non-finite points from which the series had recovered.
    """

    series: Series
    at: int
    before: int | None
    count: int
    recovered: bool
    severity: Severity
    earlier: tuple[int, ...] = ()
    until: int | None = None
    """The point before which an episode ends: from there on the series is non-finite for another reason, or again."""


def onsets(view: View, kind: str) -> list[Onset]:
    """The first NaN ("nan") or infinity ("inf") of every series, unless it is harmless.

    Where the series broke later, after it had recovered from such values, these come first, as information.
    """
    found = []
    for series in view.series:
        if series.finite is series:
            continue
        bad = np.isnan(series.value) if kind == "nan" else np.isinf(series.value)
        if bad.any() and (onset := _onset(view, series, bad)):
            if onset.earlier:
                found.append(_episode(onset))
            found.append(onset)
    return found


def _episode(onset: Onset) -> Onset:
    """The non-finite values before `onset` that the series recovered from."""
    series = onset.series
    at = int(np.searchsorted(series.step, onset.earlier[0]))
    finite = np.flatnonzero(np.isfinite(series.value[:at]))
    before = int(finite[-1]) if len(finite) else None
    return Onset(series, at, before, len(onset.earlier), True, "info", until=onset.at)


def _onset(view: View, series: Series, bad: NDArray[np.bool_]) -> Onset | None:
    finite = np.isfinite(series.value)
    count = int(bad.sum())
    if not finite.any():
        grave = series.role in ALWAYS_DEFINED and not _BEST.search(series.tag) and not _unused_part(view, series)
        return Onset(series, int(np.argmax(bad)), None, count, False, "error" if grave else "info")
    first_finite = int(np.argmax(finite))
    if series.role != "loss" or _BEST.search(series.tag):
        # scores before the first evaluation, the gradient norm before the first update
        bad = bad & (np.arange(len(bad)) > first_finite)
    bad = bad & ~skipped(view, series)
    count = int(bad.sum())
    if not count:
        return None
    at = broke(~finite, int(np.argmax(bad)))
    at += int(np.argmax(bad[at:])) if bad[at:].any() else int(np.argmax(bad)) - at
    before = np.flatnonzero(finite[:at])
    recovered = bool(finite[at:].any())
    earlier = tuple(series.step[:at][bad[:at]].tolist())
    undefined = (recovered or _NO_VARIANCE.search(series.tag)) and undefined_at_times(view, series)
    severity: Severity = "info" if undefined else survived(view, series, at)
    return Onset(series, at, int(before[-1]) if len(before) else None, count, recovered, severity, earlier)


def _unused_part(view: View, series: Series) -> bool:
    """Whether a loss that never was finite is a part that the training does not have: of a hybrid model that was
    configured without a decoder, ``loss_att`` is NaN, and ``loss`` is finite throughout."""
    if series.role not in ("loss", "val_loss"):
        return False
    wholes = (s for s in view.of(series.role) if series.tag.startswith(s.tag + "_") and s.tag != series.tag)
    return any(len(s) >= len(series) and bool(np.isfinite(s.value).all()) for s in wholes)


def undefined_at_times(view: View, series: Series) -> bool:
    """Whether non-finite points of a series say nothing of the training, if finite ones follow them.

    A score may have no value in an evaluation: the AUC of a class of which a batch has no example. It says nothing
    where losses and gradient norms are logged, and all of them are finite.
    """
    if series.role in ALWAYS_DEFINED or view.main("loss", "val_loss") is None:
        return False
    return all(
        bool(np.isfinite(s.value).all()) or (s.role == "val_loss" and of_single_evaluations(view, s) != "error")
        for s in view.of(*ALWAYS_DEFINED)
        if not _BEST.search(s.tag)
    )


def of_single_evaluations(view: View, series: Series) -> Severity:
    """The severity of a validation loss that is non-finite: "error" unless it is finite again up to the end and the
    training never was anything else. Then no weight was lost: "info" for few evaluations, else "warning"."""
    training = [s for s in view.of(*ALWAYS_DEFINED) if s.role != "val_loss" and not _BEST.search(s.tag)]
    if not any(s.role == "loss" for s in training) or not all(np.isfinite(s.value).all() for s in training):
        return "error"
    bad = ~np.isfinite(series.value)
    after = len(bad) - 1 - int(np.flatnonzero(bad)[-1])
    if not after:
        return "error"
    return "info" if after >= _AGAIN and bad.mean() <= _RARE else "warning"


def survived(view: View, series: Series, at: int) -> Severity:
    """The severity of non-finite gradient norms from point `at` on: "error" unless the training went on well. Of a
    validation loss, see `of_single_evaluations`.

    It did if finite ones follow, up to the end or for long before the run breaks, and the loss is finite all that time:
    their updates were skipped, or did no harm. Then they are "info" if they are few, else "warning".
    """
    if series.role == "val_loss":
        return of_single_evaluations(view, series)
    loss, bad = view.main("loss"), ~np.isfinite(series.value)
    end = broke(bad, at) if bad[-_OPEN:].any() else len(series)
    if series.role not in GRADIENTS or loss is None or end <= at:
        return "error"
    until = series.step[end] if end < len(series) else np.inf
    after = loss.value[(loss.step > series.step[at]) & (loss.step < until)]
    if not len(after) or not np.isfinite(after).all() or bad[at:end].mean() >= _WORKS:
        return "error"
    return "info" if bad[at:end].mean() < _FEW else "warning"


def broke(bad: NDArray[np.bool_], first: int) -> int:
    """The point where a series that ends non-finite broke: from there on it never recovers for long.

    Stretches before a finite one of at least ten points, and ten times the bad points so far, are episodes of their
    own: the series had recovered. `first` for a series that ends finite.
    """
    stretches = [s for s in groups(bad) if s[0] >= first]
    if not stretches or stretches[-1][1] < len(bad) - 1:
        return first
    at = stretches[-1][0]
    for start, end in reversed(stretches[:-1]):
        so_far = int(bad[first : end + 1].sum())
        if at - end - 1 >= _APART * max(1, so_far):
            break
        at = start
    return at


def describe(onset: Onset, what: str) -> tuple[str, dict[str, Any]]:
    """The sentence and the evidence of an onset; `what` is the word for the non-finite value."""
    series, at = onset.series, onset.at
    evidence: dict[str, Any] = {"value": series.value[at], "count": onset.count, "points": len(series)}
    if onset.before is None:
        text = f"{series.tag} is {what} since its first point (step {series.step[at]})"
        if at:
            text = f"{series.tag} is {what} at step {series.step[at]}; it was {number(series.value[0])} at its first "
            text += f"point (step {series.step[0]})"
    else:
        value, step = series.value[onset.before], series.step[onset.before]
        # the row before is not finite either: it shows that this kind of value was not there yet
        evidence |= {"before": value, "last_finite_step": step} | between(series, at - 1, at)
        text = f"{series.tag} is {what} at step {series.step[at]}; it was {number(value)} at step {step}"
        if onset.before < at - 1:
            text += f" and {number(series.value[at - 1])} at step {series.step[at - 1]}"
    if "between" in evidence:
        text += f" (onset between {evidence['between'][0]} and {evidence['between'][1]})"
    evidence["finite_after"] = onset.recovered and bool(np.isfinite(series.value[: onset.until][-1]))
    if onset.recovered:
        text += f"; {onset.count} of {len(series)} points are {what}, {_what_follows(onset)}"
    elif at < len(series) - 1:
        text += " and stays non-finite"
    if onset.earlier:
        evidence["earlier_steps"] = list(onset.earlier[:10])
        text += f"; it was {what} {len(onset.earlier)} times before, first at step {onset.earlier[0]}, and recovered"
    return text, evidence


def _what_follows(onset: Onset) -> str:
    """What the log shows after non-finite points between finite ones: how the series ends."""
    finite, step = np.isfinite(onset.series.value[: onset.until]), onset.series.step
    rest = int(np.flatnonzero(finite)[-1]) + 1
    if rest < len(finite) and onset.until is None:
        return f"and from step {step[rest]} to the end none is finite"
    since = int(np.flatnonzero(~finite[:rest])[-1]) + 1
    return f"and from step {step[since]} {'to the end' if onset.until is None else 'on'} it is finite again"


def before_break(series: Series) -> Series:
    """The series up to where it broke: finite points that lie among more non-finite ones, up to the end of the log, are
    single batches that did not fail, and show no level. `_LEVEL` finite points in a row do."""
    if series.finite is series:
        return series
    bad = ~np.isfinite(series.value)
    levels = [last for first, last in groups(~bad) if last - first + 1 >= _LEVEL] if bad.any() else []
    after = bad[levels[-1] + 1 :] if levels else bad[:0]
    if 2 * int(after.sum()) <= len(after):
        return series
    return series.take(slice(levels[-1] + 1))


def between(series: Series, before: int, at: int) -> dict[str, list[int]]:
    """Evidence of an onset that the log shows as an interval only: no row stands for each of the steps from the one
    after the last finite row to the first non-finite one. Empty where the rows are of neighbouring steps."""
    first, last = int(series.step[before]) + 1, int(series.step[at])
    return {"between": [first, last]} if last > first else {}


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


def skipped(view: View, series: Series) -> NDArray[np.bool_]:
    """True at the non-finite points that are steps which an active loss scaler skipped; each is looked at by itself.

    A stretch of non-finite gradient norms is skipped if a loss scale that changes is logged, or the log reports the
    overflows; if the loss is finite there and at its next row; if at most 20 points are in it; and if finite ones
    follow, or it is at the very end of the log. A scaler that skips more than a fifth of the finite part of the run
    does not work.
    """
    handled = np.zeros(len(series), bool)
    if series.role not in GRADIENTS or not _scaler(view):
        return handled
    loss = view.main("loss")
    for start, end in groups(~np.isfinite(series.value)):
        last = end == len(series) - 1
        if end - start >= (_OPEN if last else _LONGEST) or not _loss_is_finite(loss, series, start, end):
            continue
        handled[start : end + 1] = True
    known = np.isfinite(series.value) | handled
    return handled if handled.sum() < _WORKS * known.sum() else np.zeros(len(series), bool)


def _scaler(view: View) -> bool:
    """Whether a loss scaler is seen at work: a logged scale that changes, or reports of overflows."""
    scale = view.main("loss_scale")
    if scale is not None and len(distinct(scale.finite.value)) > 1:
        return True
    return any("overflow" in e.kind for e in view.events)


def _loss_is_finite(loss: Series | None, series: Series, start: int, end: int) -> bool:
    """Whether the loss is finite at the steps of points `start` to `end` and at its next row."""
    if loss is None:
        return True
    first = int(np.searchsorted(loss.step, series.step[start]))
    after = int(np.searchsorted(loss.step, series.step[end], side="right"))
    return bool(np.isfinite(loss.value[first : after + 1]).all())
