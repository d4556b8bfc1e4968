from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.nonfinite import describe, onsets, reported
from postmortem.detectors.shared.self_reports import reported_nonfinite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class NanOnset(BaseDetector):
    """The first NaN of a metric.

    What it looks for: the first step at which a metric becomes NaN. Every metric is checked, including those of unknown
    role.

    Why it matters: a NaN in the loss or the gradient reaches all weights with the next update. The steps after it are
    lost, and only a checkpoint from before it can be used.

    How: the first logged NaN, without the points that a restart overwrote; no statistics. If a series stays non-finite,
    it is the first NaN from which it did not recover (for ten times as many points). With a logging interval of k
    steps, the true onset lies within the k steps before it: the evidence has `between`. If loss and gradient norm stay
    finite, or the log ends before they could show it, the program's own messages count ("NaN/Inf detected in loss!"):
    an error if nothing was trained after it, `info` if the program skipped the step, else a warning.

    Typical causes: log(0), 0/0, the square root of a negative number or its derivative at zero, overflow to infinity
    and then inf - inf, a NaN in the data, a learning rate that is too high, fp16 without a loss scale.

    What to try: `postmortem replay` at this step from the last good checkpoint names the operation. Manually: run that
    step under torch.autograd.set_detect_anomaly(True), and check the batch for non-finite values.

    Severity: info for a score that is undefined in some evaluations (no positive example in the batch) and finite in
    later ones, and for an explained variance, which is undefined where all returns are equal, if all losses and
    gradient norms of the run are finite; for single gradient norms, after which the gradient norm and the loss stay
    finite; and for few evaluations in a run whose training metrics are always finite and whose last evaluations are (a
    warning if they are more than a tenth, or only one evaluation follows). Also info for the loss of an earlier attempt
    whose steps a restart logged again.

    Known false positives: a score that is undefined up to the last evaluation. Values that are NaN only before the
    first finite value, and gradient norms of steps that a loss scaler skipped, are not reported.
    """

    code = "NAN001"
    name = "nan-onset"
    severity = "error"

    def detect(self, view: View) -> Iterator[Finding]:
        yield from reported_nonfinite(self, view, gradients=False)
        for onset in onsets(view, "nan"):
            message, evidence = describe(onset, "NaN")
            yield self.found(onset.series, onset.at, message, severity=onset.severity, evidence=evidence)
        if event := reported(view, "nan"):
            yield self.reported(event)
        yield from self._overwritten(view)

    def _overwritten(self, view: View) -> Iterator[Finding]:
        """A loss or gradient norm that was NaN in an earlier attempt, in steps that a restart logged again."""
        for series in view.overwritten:
            bad = np.isnan(series.value)
            if series.role in ("loss", "grad_norm") and bad.any():
                at = int(np.argmax(bad))
                yield self.found(
                    series,
                    at,
                    f"{series.tag} was NaN at step {series.step[at]} in an earlier attempt, which a restart overwrote",
                    severity="info",
                    evidence={"count": int(bad.sum()), "points": len(series), "overwritten": True},
                )
                return
