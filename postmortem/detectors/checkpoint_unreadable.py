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
class CheckpointUnreadable(BaseDetector):
    """A checkpoint cannot be read.

    What it looks for: saved weights that are truncated, corrupt or no checkpoint at all.

    Why it matters: it is often the newest one, from which the next start would resume.

    How: the file is opened and its tensors are read, without running any code in it; no statistics.

    Typical causes: the process was killed or the disk was full while it was written; a pointer file in place of
    the weights (Git LFS); an incomplete download.

    What to try: resume from the checkpoint before it; write to a temporary name and rename when complete.

    Known false positives: a checkpoint that is being written at this moment.
    """

    code = "CKP002"
    name = "checkpoint-unreadable"
    severity = "error"
    reads_checkpoints = True

    def detect(self, view: View) -> Iterator[Finding]:
        if not any(c.finite is not None or c.problem for c in view.checkpoints):
            raise NotChecked("no checkpoint was looked into" if view.checkpoints else "no checkpoint found")
        for c in view.checkpoints:
            if c.problem:
                message = f"{Path(c.path).name}: {c.problem}"
                evidence = {"path": c.path}
                yield Finding(
                    code=self.code,
                    name=self.name,
                    severity=self.severity,
                    message=message,
                    step=c.step,
                    evidence=evidence,
                )
