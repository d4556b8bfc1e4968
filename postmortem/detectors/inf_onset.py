from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.nonfinite import describe, onsets, reported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class InfOnset(BaseDetector):
    """The first infinity of a metric.

    What it looks for: the first step at which a metric is inf or -inf. Every metric is checked, including those of
    unknown role.

    Why it matters: an infinity comes from an overflow or a division by zero. It usually turns into NaN within a step or
    two (inf - inf, 0 * inf), so the infinity is closer to the cause than the NaN.

    How: the first logged infinity, without the points that a restart overwrote; no statistics.

    Typical causes: exp of a large number, fp16 overflow above 65504, log(0), division by zero, a run that diverges,
    perplexity = exp(loss) with a loss above 709.

    What to try: `postmortem replay` at this step; use fp32 or bf16 for the layer that overflows; use log_softmax or
    logsumexp instead of log(softmax); lower the learning rate if the loss rose before.

    Known false positives: gradient norms of steps that a working loss scaler skipped. They are not reported if a loss
    scale that changes, or its overflows, are logged; else they are `info`, if the gradient norm and the loss are
    finite after them.
    """

    code = "NAN002"
    name = "inf-onset"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        for onset in onsets(view, "inf"):
            message, evidence = describe(onset, "infinite")
            yield self.found(onset.series, onset.at, message, severity=onset.severity, evidence=evidence)
        if event := reported(view, "inf"):
            yield self.reported(event)
