from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.nonfinite import between, broke, skipped, survived
from postmortem.detectors.shared.self_reports import reported_nonfinite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class NonfiniteGradient(BaseDetector):
    """A gradient norm that is NaN or infinite while the loss is still finite.

    What it looks for: the first step with a non-finite gradient norm and a finite loss.

    Why it matters: the loss alone does not show the fault, which may be in the backward pass. If the update was
    applied, the weights are lost from this step on. If the loss stays finite and the gradient norm is finite again, the
    update was skipped or harmless: `info`, or a warning if there are many such steps.

    How: exact comparison of the logged values at the same step; no statistics. If all of them are finite, the program's
    own messages count ("NaN gradient in encoder.weight").

    Typical causes: a derivative that is infinite where the function is not (sqrt, norm or pow at zero, atan2,
    log near zero, where() with an infinite branch), fp16 gradients that overflow, a loss scale too high.

    What to try: `postmortem replay` at this step names the operation whose derivative fails; add an eps inside the
    root; check whether the optimizer step is skipped if gradients are non-finite.

    Known false positives: a working loss scaler causes single infinite norms at the steps that it skips. They are not
    reported if a loss scale that changes, or its overflows, are logged. The logged loss may be that of one of several
    micro-batches while another one was non-finite.
    """

    code = "NAN003"
    name = "nonfinite-gradient"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        grads, losses = view.of("grad_norm", "layer_grad_norm"), view.of("loss")
        if said := list(reported_nonfinite(self, view, gradients=True)):
            yield from said
            return
        if not grads or not losses:
            raise NotChecked("no gradient norm logged together with a loss")
        loss = losses[0]
        for series in grads:
            if series.finite is series:
                continue
            bad = ~np.isfinite(series.value)
            finite = np.isfinite(series.value)
            if not bad.any() or not finite.any():
                continue
            bad &= np.arange(len(bad)) > int(np.argmax(finite))
            bad &= ~skipped(view, series)
            rows = np.flatnonzero(bad)
            at_loss = np.searchsorted(loss.step, series.step[rows], side="right") - 1
            rows = rows[(at_loss >= 0) & np.isfinite(loss.value[np.maximum(at_loss, 0)])]
            if not len(rows):
                continue
            at = broke(~finite, int(rows[0]))
            at = int(rows[rows >= at][0]) if (rows >= at).any() else int(rows[0])
            value = loss.value[int(np.searchsorted(loss.step, series.step[at], side="right")) - 1]
            before = int(np.flatnonzero(finite[:at])[-1])
            more = int((rows > at).sum())
            yield self.found(
                series,
                at,
                f"{series.tag} is {number(series.value[at])} at step {series.step[at]} "
                f"while {loss.tag} is {number(value)}" + (f", as at {more:,} later points" if more else ""),
                severity=survived(view, series, at),
                evidence={
                    "value": series.value[at],
                    "before": series.value[before],
                    "last_finite_step": series.step[before],
                    "loss": value,
                    "count": len(rows),
                    "points": len(series),
                    **between(series, before, at),
                },
            )
