from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.patterns import later
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View

_OPTIONAL = later(
    r"\b(?:val|valid|validation|test|eval|evaluation|dev|unlabel\w*|negative|checkpoint|config|resume|log|json|yaml"
    r"|model|weight|plugin|event)s?\b",
    re.IGNORECASE,
)
"""What a training can do without."""


@detector
class EmptyDataset(BaseDetector):
    """The program reports an empty data set or cache.

    What it looks for: messages such as "Cache preloaded: 0 items" or "Found 0 images", see `postmortem explain
    empty-cache`.

    Why it matters: a training on 0 samples ends without an error, and its metrics are meaningless.

    Severity: info where it stands before the first step of a log to which later attempts are appended.

    How: no statistics. One finding for all messages of a run. Messages about optional splits (validation, test) and
    about other files (checkpoints, settings) do not count.

    Typical causes: a wrong path, name or case of a split; a missing folder; a filter that removes every sample.

    What to try: print the number of samples of each split, and stop the program if one is 0.

    Known false positives: a part of the training data that is empty on purpose.
    """

    code = "RUN005"
    name = "empty-dataset"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        empty = (e for e in view.events if e.kind == "empty-cache" and e.severity == "warning")
        if event := next((e for e in empty if _OPTIONAL.search(e.message) is None), None):
            found = self.reported(event)
            if event.step is None and view.restarts:
                words = f"{found.message} (before the first attempt; later ones are appended to the same log)"
                found = replace(found, severity="info", message=words)
            yield found
