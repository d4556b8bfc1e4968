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
    """A file of the run is cut: it ends in the middle of a record, or begins with NUL bytes.

    What it looks for: a log whose last record or line is not complete, or whose first bytes are NUL.

    Why it matters: the process was stopped while writing, or the copy is incomplete; the last or the first steps are
    missing.

    How: the reader reports the byte at which the last complete record ends, or the NUL bytes; no statistics.

    Typical causes: a killed process, a full disk, a copy made during the run, a log that was truncated while the
    run wrote to it.

    What to try: copy the file again; check the other sources of the run for the last steps.

    Known false positives: a run that is still writing.
    """

    code = "DAT001"
    name = "truncated-file"
    severity = "info"

    def detect(self, view: View) -> Iterator[Finding]:
        yield from findings(view, {"cut"}, self.code, self.name, self.severity)
