"""What the program itself reports in words about non-finite numbers, where its metrics do not show them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.detectors.shared.frozen import constant_from, digits
from postmortem.detectors.shared.nonfinite import ALWAYS_DEFINED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Event, Finding, Severity
    from postmortem.core.view import View
    from postmortem.detectors.base import BaseDetector

_HANDLED_WITHIN = 3
"""Lines after a report within which the program says that it skips the step."""
_OFTEN = 0.1
"""Share of the steps after the first skipped one from which on skipping is no exception: the model hardly learns."""
_STANDS, _TELLING = 5, 3
"""Rows and digits from which on a loss that does not change is no coincidence."""
_LATE = 0.25
"""The share of the lines from the first to the last skipped step that holds half of them, if they become more."""
_ONCE_AN_EPOCH = 3
"""Skipped steps up to which their share says nothing."""


def reported_nonfinite(detector: BaseDetector, view: View, *, gradients: bool) -> Iterator[Finding]:
    """Findings for reports of NaN or Inf in words; of gradients, or of all else.

    None where a loss or a gradient norm is non-finite: that finding knows more. The finding is an error if nothing was
    trained after the report, or the printed loss does not change any more; info if the program skipped the step; else
    a warning, as the numbers do not show it.
    """
    if not view.events or any(s.role in ALWAYS_DEFINED and s.finite is not s for s in view.series):
        return
    reports = [e for e in view.events if e.kind == "nan-report" and _is_gradient(e) == gradients]
    skipped = [e for e in view.events if e.kind in ("update-skipped", "nonfinite-replaced")]
    alone = [e for e in reports if not _handled(e, skipped)]
    if alone:
        first = alone[0]
        lost = _last_word(view, first) or _stands_since(view, first) or _spoils_weights(first)
        severity: Severity = "error" if lost else "warning"
        yield _finding(detector, view, first, alone, severity)
    elif skipped and not gradients:
        first = skipped[0]
        grows = _grow(skipped)
        found = _finding(detector, view, first, skipped, "warning" if grows or _often(view, first) else "info")
        yield replace(found, message=f"{found.message}; {grows}") if grows else found


def _is_gradient(event: Event) -> bool:
    return str(event.fields.get("what", "")).lower().startswith("grad")


def _handled(report: Event, skipped: list[Event]) -> bool:
    """Whether the program says in one of the next lines that it skips the step."""
    return any(
        s.file == report.file and None not in (s.line, report.line) and 0 <= s.line - report.line <= _HANDLED_WITHIN  # type: ignore[operator]
        for s in skipped
    )


def _spoils_weights(event: Event) -> bool:
    """Whether `postmortem run` saw non-finite parameters, which no later step mends, or stopped the training."""
    return event.source == "watch" and (event.fields.get("fault") == "parameter" or bool(event.fields.get("stopped")))


def _last_word(view: View, event: Event) -> bool:
    """Whether the log has no step after the report, and no regular end."""
    if None not in (view.last_step, event.step) and event.step > view.last_step:  # type: ignore[operator]
        return True  # and the program went on to its end without a number
    if view.run.ended == "completed":
        return False
    return view.last_step is not None and event.step is not None and event.step >= view.last_step > 0


def _stands_since(view: View, event: Event) -> bool:
    """Whether a loss is the same number in all rows since the report: a mean that takes up no NaN, and nothing else.

    The mean may still change in the first row after the report, by the steps before it.
    """
    if event.step is None:
        return False
    for series in (s.finite for s in view.of("loss")):
        at = constant_from(series)
        telling = len(series) - at >= _STANDS and digits(float(series.value[-1])) >= _TELLING
        if telling and 0 <= at - int(np.searchsorted(series.step, event.step)) + 1 <= 2:
            return True
    return False


def _often(view: View, event: Event) -> bool:
    """Whether so many steps were skipped that the training suffers."""
    count = int(event.fields.get("count", 1))
    after = (view.last_step or 0) - (event.step or 0) + 1
    return count > _ONCE_AN_EPOCH and count > _OFTEN * after


def _grow(skipped: list[Event]) -> str | None:
    """That half of many skipped steps are in the last part of the lines from the first to the last, in words."""
    only = skipped[0]
    half, last = only.fields.get("half_line"), only.fields.get("last_line")
    if len(skipped) > 1 or only.line is None or not isinstance(half, int) or not isinstance(last, int):
        return None
    share = (last - half) / max(1, last - only.line)
    return f"they become more: half of them are in the last {share:.0%} of the lines between" if share < _LATE else None


def _finding(detector: BaseDetector, view: View, event: Event, all_of: list[Event], severity: Severity) -> Finding:
    names = [str(n) for e in all_of for n in e.fields.get("parameters") or [e.fields.get("parameter")] if n]
    finding = detector.reported(event)
    count = sum(int(e.fields.get("count", 1)) for e in all_of)
    where = f"line {event.line} of {event.file.rsplit('/', 1)[-1]}" if event.line is not None else "the log"
    also = f", which names {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}" if names else ""
    if event.source == "watch":
        text = f"`postmortem run` saw it at step {event.step}"
    elif event.kind == "nonfinite-replaced":
        text = f"a non-finite value was replaced {f'{count} times' if count > 1 else 'once'}, as {where} reports"
    elif event.kind == "update-skipped":
        text = f"{count} step{'s' if count > 1 else ''} skipped for a non-finite value, as {where} reports"
    else:
        text = f"The program reports {event.fields.get('value', 'NaN')} in words ({where}{also})"
    return replace(
        finding,
        severity=severity,
        message=f"{text}: {finding.message}",
        evidence=finding.evidence | {"count": count, "parameters": list(dict.fromkeys(names))[:20]},
    )
