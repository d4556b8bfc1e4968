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
class CorruptRecord(BaseDetector):
    """Damage inside a file of the run: a record whose checksum or content is wrong.

    What it looks for: records that cannot be decoded, with more records after them.

    Why it matters: the values in these records are lost; the run is judged without them.

    How: the reader verifies checksums and formats and continues at the next complete record; no statistics.

    Typical causes: two processes that write to one file, a failing disk, a transfer that changed bytes.

    What to try: copy the file again; use one file per writer.

    NUL bytes in the place of a row of a text log are info.

    Known false positives: other programs that print into the log.
    """

    code = "DAT002"
    name = "corrupt-record"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        yield from findings(view, {"records", "row"}, self.code, self.name, self.severity)
