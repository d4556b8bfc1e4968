"""What the log shows of a failure beside the operator that a rerun names: a learning rate that rose, a GAN that no
longer learns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postmortem.core.culprit import ReplayResult
    from postmortem.core.report import RunReport

_CAUSES = ("learning-rate-too-high", "nonfinite-learning-rate")
_BEFORE = ("generator-collapse", "lr-jump")
"""Findings that may be the reason of what fails later."""


def with_cause_of_log(result: ReplayResult, report: RunReport | None) -> ReplayResult:
    """The result with the learning rate first in what to do, where the scan of the log names it as the likely cause.

    The operator is where the values leave their range then. Unchanged where a change of the updates was found to cure
    the failure, or a fix of the step did.
    """
    result = _with_findings(result, report)
    c, d = result.culprit, report.diagnosis if report is not None else None
    root = next((f for f in report.findings if d is not None and f.id in d.findings[:1]), None) if report else None
    if d is None or d.name not in _CAUSES or d.strength == "possible" or root is None:
        return result
    late = result.step is not None and root.step is not None and root.step > result.step
    if late or c.phase in ("none", "optimizer") or any(f.good for f in c.fixes):
        return result
    told = "the log shows a cause before this step"
    advice = tuple(a for a in d.next if "`" not in a and "postmortem " not in a)
    first = "; ".join([f"{told}: {d.summary.rstrip('.')}", *advice])
    following = tuple(a for a in result.next if "start the training again" not in a)
    start = d.last_good_checkpoint
    again = f"then start the training again, with this change, from {start}" if start is not None else None
    how = (*c.how, f"{told} ({d.name}): see what to do")
    following = (first, *following, *([again] if again is not None else []))
    return replace(result, culprit=replace(c, how=how), next=following)


def _with_findings(result: ReplayResult, report: RunReport | None) -> ReplayResult:
    """The result with what the log shows before the step that may be the reason, before the last thing to do."""
    step, next_ = result.step, result.next
    if report is None or step is None or result.culprit.phase == "none" or not next_:
        return result
    found = [f for f in report.findings if f.name in _BEFORE and f.severity != "info" and (f.step or 0) <= step]
    told = [f"look at what the log shows before this step, which may be the reason: {f.message}" for f in found]
    return replace(result, next=(*next_[:-1], *told, next_[-1])) if told else result
