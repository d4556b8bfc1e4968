"""Which step to roll to, and which checkpoint to start from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.replay.roll.sought import explains, sought_of, without_learning

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.report import RunReport
    from postmortem.core.view import View
    from postmortem.replay.roll.sought import Sought

_NONFINITE = ("nan-onset", "inf-onset", "nonfinite-gradient", "masked-nonfinite")
_GROWING = ("divergence", "gradient-explosion", "loss-spike", "gradient-spike", "loss-scale-collapse")


_NOT_OF_A_STEP = ("val_loss", "val_accuracy", "accuracy", "perplexity", "reward")  # roles of what evaluations log
_AFTER = 20  # logged steps to run after a jump of the loss, at most up to its end
_CALM = 15  # steps before a jump that make its level
_GROWS = 8  # the same of a growth, which begins earlier than it is found
_FAR = 1000  # steps to follow a divergence that never turns non-finite


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a replay.

    step: the last step to run (None: up to the end of the batches). asked: the step that the user requested.
    failed: the log reports a failed run. nonfinite: the log is non-finite at `step`. beyond: further steps to run, if
    a run crashed before it could log the failing step. masked: from this step on the log may show numbers in place of
    non-finite losses. grows: the failure is a loss or gradient that grew. sought: the finding of finite values that is
    looked for, if nothing in the log is non-finite.
    """

    step: int | None
    asked: int | None = None
    failed: bool = False
    nonfinite: bool = False
    beyond: int = 0
    masked: int | None = None
    grows: bool = False
    sought: Sought | None = None

    @property
    def start(self) -> int | None:
        """The last step that a replay can start at: of a jump or growth, some calm steps come before it."""
        if self.sought is None or self.sought.kind == "still" or self.step is None:
            return self.step
        return min(self.step, self.sought.step - (_GROWS if self.sought.kind == "growth" else _CALM))


def aim_at(view: View | None, report: RunReport | None, asked: int | None) -> Aim:
    """The target: the requested step, else the first non-finite loss of the log, else a divergence, else the end.

    If a divergence begins at the requested step in the log, it is the target: it shows only some steps later.
    """
    # a value that the log places by an epoch, where it counts steps too, does not name a step to go to
    only_epochs = view is not None and view.run.step_axis == "epoch"
    known = [f for f in report.findings if f.unit == "step" or only_epochs] if report is not None else []
    findings = [f for f in known if f.severity != "info" and f.step is not None]
    roles = view.run.roles if view is not None else {}
    bad = [
        f
        for f in findings
        if f.name in _NONFINITE and f.severity == "error" and roles.get(f.tag or "") not in _NOT_OF_A_STEP
    ]
    gradients = [f for f in bad if f.name == "nonfinite-gradient" or roles.get(f.tag or "") == "grad_norm"]
    losses = [f for f in bad if roles.get(f.tag or "") == "loss" and f.name != "masked-nonfinite"]
    replaced = [f for f in findings if f.name == "masked-nonfinite"]
    # a loss that stays finite while its gradient does not was replaced, too, or is a mean of what was finite
    masked = min(_steps([*replaced, *gradients])) if replaced or (gradients and not losses) else None
    unasked = replace(_by_log(view, report, findings, bad, losses, gradients), masked=masked)
    collapse = any(f.name == "loss-scale-collapse" for f in findings)  # the gradients overflow: nothing is finite
    if view is not None and not collapse and (not bad or explains(findings, bad)):
        sought = sought_of(findings, roles, _interval(view), asked)
        sought = sought or (None if bad or asked is not None else _without_learning(view))
        unasked = _toward(unasked, sought, asked)
    if asked is None:
        return unasked
    grows = any(f.step == asked for f in findings if f.name in _GROWING)
    if grows and unasked.step is not None and unasked.step > asked:
        return replace(unasked, asked=asked)
    sure = any(f.step == asked for f in bad)
    return Aim(asked, asked, True, sure, masked=masked, sought=unasked.sought if not sure else None)


def _toward(aim: Aim, sought: Sought | None, asked: int | None) -> Aim:
    """The aim at a finding of finite values. A jump needs no steps after it, only those to see whether it stays."""
    if sought is None:
        return aim
    if sought.kind == "spike" and asked is None and aim.grows and aim.step is not None:
        return replace(aim, sought=sought, step=max(sought.step, min(aim.step, sought.step + _AFTER * sought.interval)))
    return replace(aim, sought=sought)


def _without_learning(view: View) -> Sought | None:
    series = view.main("loss")
    if series is None:
        return None
    finite = series.finite
    return without_learning(finite.value.tolist(), finite.step.tolist())


def _by_log(
    view: View | None,
    report: RunReport | None,
    findings: list[Finding],
    bad: list[Finding],
    losses: list[Finding],
    gradients: list[Finding],
) -> Aim:
    failed = report is not None and report.verdict == "failed"
    if bad:
        return Aim(min(_steps(losses or gradients)) if losses or gradients else max(_steps(bad)), None, True, True)
    growing = [f for f in findings if f.name in _GROWING]
    last = view.last_step if view is not None else None
    if growing:
        ends = [_end(f) for f in growing if f.name != "divergence"]
        known = [end for end in ends if end is not None]
        if len(known) == len(growing):
            return Aim(max(known), None, failed, grows=True)
        far = max(_steps(growing)) + _FAR
        return Aim(far if last is None else min(far, last), None, failed, grows=True)
    crashed = report is not None and report.ended in ("crashed", "cut") and last is not None
    return Aim(last, None, failed, False, _interval(view) if crashed and view is not None else 0)


def _end(finding: Finding) -> int | None:
    return finding.end_step if finding.end_step is not None else finding.step


def _interval(view: View) -> int:
    """Steps between two lines of the log, as the loss has them."""
    series = view.main("loss") or next(iter(view.series), None)
    return max(1, int(np.median(np.diff(series.step)))) if series is not None and len(series) > 1 else 1


def _steps(findings: list[Finding]) -> list[int]:
    return [f.step for f in findings if f.step is not None]
