from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.damage import findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class TruncatedFile(BaseDetector):
    """A file of the run ends in the middle of a record.

    What it looks for: a log whose last record or line is not complete.

    Why it matters: the process was stopped while it wrote, or the copy is not complete; the last steps are missing.

    How: the reader says at which byte the last whole record ends; no statistics.

    Typical causes: a kill, a full disk, a copy made while the run was going on.

    What to try: copy the file again; look at the other sources of the run for the last steps.

    Known false positives: a run that is still writing.
    """

    code = "DAT001"
    name = "truncated-file"
    severity = "info"

    def detect(self, view: View) -> Iterator[Finding]:
        yield from findings(view, "truncated", self.code, self.name, self.severity)
