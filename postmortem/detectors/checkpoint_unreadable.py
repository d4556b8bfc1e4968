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

    What it looks for: saved weights that are truncated or corrupt, or files that are not a checkpoint at all.

    Why it matters: it is often the newest checkpoint, from which the next run would resume.

    How: the file is opened and its tensors are read without executing any code in it; no statistics.

    Typical causes: the process was killed, or the disk was full, while the file was written; a Git LFS pointer file
    instead of the weights; an incomplete download.

    What to try: resume from the previous checkpoint; write to a temporary file and rename it when it is complete.

    Known false positives: a checkpoint that is being written while it is checked.
    """

    code = "CKP002"
    name = "checkpoint-unreadable"
    severity = "error"
    reads_checkpoints = True

    def detect(self, view: View) -> Iterator[Finding]:
        if not any(c.finite is not None or c.problem for c in view.checkpoints):
            raise NotChecked("no checkpoint was checked" if view.checkpoints else "no checkpoint found")
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
