from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postmortem.core.model import Finding
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.view import View


@detector
class CheckpointNonfinite(BaseDetector):
    """Saved weights hold NaN or infinities.

    What it looks for: non-finite values in the tensors of a checkpoint (weights or optimizer state).

    Why it matters: a run that resumes from such a checkpoint is non-finite from its first step, whatever else is fixed.
    The last good checkpoint is an older one.

    How: every tensor of the checkpoint is read and its non-finite values are counted; no statistics. If the log shows
    no error, only the newest checkpoint is checked, and only up to 512 MiB. If it holds non-finite values, or if the
    run failed, checkpoints are checked from the newest back to the first good one; all are checked with
    ``--checkpoints`` or ``postmortem checkpoints``.

    Typical causes: the run became non-finite and continued to save checkpoints; the weights became non-finite before
    the loss did.

    What to try: resume from the last good checkpoint (the diagnosis names it); save a checkpoint only if loss and
    gradient norm are finite.

    Known false positives: buffers that hold infinities intentionally, such as an attention mask or a best score so far.
    """

    code = "CKP001"
    name = "checkpoint-nonfinite"
    severity = "error"
    reads_checkpoints = True

    def detect(self, view: View) -> Iterator[Finding]:
        looked = [c for c in view.checkpoints if c.finite is not None]
        if not looked:
            raise NotChecked("no checkpoint was checked" if view.checkpoints else "no checkpoint found")
        bad = sorted((c for c in looked if not c.finite), key=lambda c: (c.step is None, c.step or 0))
        if not bad:
            return
        first = bad[0]
        names = ", ".join(first.nonfinite[:3]) + (", …" if len(first.nonfinite) > 3 else "")
        more = "; so does 1 later checkpoint" if len(bad) == 2 else ""
        if len(bad) > 2:
            more = f"; so do {len(bad) - 1} later checkpoints"
        evidence = {"checkpoints": [{"path": c.path, "step": c.step, "tensors": list(c.nonfinite[:20])} for c in bad]}
        message = f"{Path(first.path).name} holds non-finite values{f' in {names}' if names else ''}{more}"
        end = bad[-1].step if len(bad) > 1 else None
        yield Finding(
            code=self.code,
            name=self.name,
            severity=self.severity,
            message=message,
            step=first.step,
            end_step=end,
            evidence=evidence,
        )
