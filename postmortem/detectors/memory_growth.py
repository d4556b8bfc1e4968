from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import centred_median, median, noise
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View


@detector
class MemoryGrowth(BaseDetector):
    """Memory that grows continuously.

    What it looks for: memory use that is higher at the end than after the first tenth of the run and still grows in the
    last quarter.

    Why it matters: it ends in an out-of-memory error, hours later, at a line that has nothing to do with the cause.

    How: windowed medians: the growth after the first tenth is above `growth`, and the last quarter still contributes.
    The onset is the last point within the noise of the earlier steady level.

    Typical causes: losses or outputs kept with their graph (`total += loss`), lists of tensors for metrics, caches in
    data loader workers, retain_graph, fragmentation of the allocator with growing sequence lengths.

    What to try: call .item() or .detach() on values that are kept; use torch.cuda.memory._record_memory_history for GPU
    memory and tracemalloc for host memory.

    Known false positives: buffers that fill slowly by design (replay buffers).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Growth after the first tenth, fraction of a uniform growth that the last quarter still shows, minimum number
        of points."""

        growth: float = 0.12
        last_quarter: float = 0.4
        points: int = 12

    code = "SYS003"
    name = "memory-growth"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        found = [s.finite for s in view.of("memory") if len(s.finite) >= self.options.points]
        if not found:
            raise NotChecked(f"no memory logged with {self.options.points} points")
        for series in found:
            if finding := self._judge(series):
                yield finding

    def _judge(self, series: Series) -> Finding | None:
        x = series.value
        n = len(x)
        smooth = centred_median(x, 2 * max(2, n // 20) + 1)
        first = n // 10
        held, end, then = (
            median(x[first : first + max(3, n // 10)]),
            median(x[-max(3, n // 20) :]),
            float(smooth[n - 1 - n // 4]),
        )
        if held <= 0 or end < (1 + self.options.growth) * held:
            return None
        if end - then < self.options.last_quarter * (end - held) * 0.25:
            return None
        if end - then < 3 * noise(x) / max(1.0, n / 20) ** 0.5 or smooth[n // 2 :].min() < held:
            return None
        level = np.flatnonzero(smooth[: n - n // 4] <= held + max(2 * noise(x), 0.02 * (end - held)))
        at = min(int(level[-1]) + 1, n - 1) if len(level) else first
        return self.found(
            series,
            at,
            f"{series.tag} grows from {number(held)} to {number(end)} and is still growing at the end",
            end=n - 1,
            evidence={"before": held, "end": end, "last_quarter": end - then},
        )
