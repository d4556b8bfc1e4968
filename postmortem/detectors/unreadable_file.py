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
class UnreadableFile(BaseDetector):
    """A file of the run from which nothing could be read.

    What it looks for: files that belong to the run by name but cannot be opened or decoded.

    Why it matters: the run is judged without their content.

    How: the reader reports what is wrong; no statistics.

    Typical causes: missing permissions, an empty file or one of another format with the name of a log, a broken link.

    What to try: check the permissions; copy the file again.

    Known false positives: none known.
    """

    code = "DAT003"
    name = "unreadable-file"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        yield from findings(view, {"file"}, self.code, self.name, self.severity)
