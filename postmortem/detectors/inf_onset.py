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
class InfOnset(BaseDetector):
    """The first infinity of a quantity.

    What it looks for: the first step at which a quantity is inf or -inf. Every quantity is looked at, also those
    whose name says nothing.

    Why it matters: an infinity is an overflow or a division by zero; it usually turns into NaN within a step or
    two (inf - inf, 0 * inf) and is then closer to the cause than the NaN is.

    How: the first infinite value of the surviving history, exactly as it was logged; no statistics.

    Typical causes: exp of a large number, fp16 overflow above 65504, log(0), division by zero, a run that
    diverges, perplexity = exp(loss) where the loss is above 709.

    What to try: `postmortem replay` at this step; fp32 or bf16 for the layer that overflows; log_softmax or
    logsumexp in place of log(softmax); a lower learning rate where the loss climbed before.

    Known false positives: gradient norms of steps that a loss scaler skipped are the scaler at work; they are
    not reported where the loss scale is logged and keeps its level. Where it is not logged they may be.
    """

    code = "NAN002"
    name = "inf-onset"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        for onset in onsets(view, "inf"):
            message, evidence = describe(onset, "infinite")
            yield self.found(onset.series, onset.at, message, severity=onset.severity, evidence=evidence)
        if event := said(view, "inf"):
            yield self.reported(event)
