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

    from numpy.typing import NDArray

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
        low, high = first + _nearest(x[first : first + max(3, n // 10)], held), n - 1
        if at <= 2 * first and _grew_from_the_start(x, first, held, end):
            at = low = 0
        if x[high] < (1 + self.options.growth) * x[low]:
            high = n - max(3, n // 20) + _nearest(x[-max(3, n // 20) :], end)
        return self.found(
            series,
            at,
            f"{series.tag} grows from {number(x[low])} at step {series.step[low]} to {number(x[high])} at step "
            f"{series.step[high]} and is still growing at the end",
            end=n - 1,
            evidence={"before": x[low], "end": x[high], "last_quarter": end - then},
        )


def _nearest(x: NDArray[np.float64], level: float) -> int:
    """The point whose value is nearest to `level`."""
    return int(np.argmin(np.abs(x - level)))


def _grew_from_the_start(x: NDArray[np.float64], first: int, held: float, end: float) -> bool:
    """Whether memory grew in the first rows, up to `held` behind row `first`, about as fast as in the rest."""
    if first < 3:
        return False
    early, pace = (held - x[0]) / first, (end - held) / (len(x) - first)
    return bool(0.5 * pace < early < 3 * pace)
