from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.nonfinite import describe, onsets, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class NanOnset(BaseDetector):
    """The first NaN of a quantity.

    What it looks for: the first step at which a quantity that was a number is not a number any more. Every
    quantity is looked at, also those whose name says nothing.

    Why it matters: a NaN in the loss or the gradient reaches all weights with the next update; everything after
    this step is lost, and only a checkpoint from before it can be used.

    How: the first NaN of the surviving history, exactly as it was logged; no statistics. With a logging
    interval of k steps the true onset lies in the k steps before it.

    Typical causes: log(0), 0/0, the square root of a negative number or its derivative at zero, overflow to
    infinity and then inf - inf, a NaN in the data, a learning rate too high, fp16 without a loss scale.

    What to try: `postmortem replay` at this step from the last good checkpoint names the operation. By hand:
    torch.autograd.set_detect_anomaly(True) on that step, and a check of the batch for non-finite values.

    Known false positives: a score that is undefined for some evaluations (no positive example in the batch).
    Values that are NaN only before the first number, and gradient norms of steps that a loss scaler skipped,
    are not reported.
    """

    code = "NAN001"
    name = "nan-onset"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        for onset in onsets(view, "nan"):
            message, evidence = describe(onset, "NaN")
            yield self.found(onset.series, onset.at, message, severity=onset.severity, evidence=evidence)
        if event := said(view, "nan"):
            yield self.reported(event)
