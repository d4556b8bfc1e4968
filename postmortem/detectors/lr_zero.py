from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.core.roles import falls
from postmortem.detectors import NotChecked, detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.lr_phase import dead_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Finding
    from postmortem.core.view import View


@detector
class LrZero(BaseDetector):
    """The learning rate is zero long before the training ends.

    What it looks for: a learning rate that stays at zero (below 1e-5 of its peak) for at least the last third of
    the run.

    Why it matters: the model does not learn during that time; the computation is wasted.

    How: exact comparison with the peak; no statistics.

    Typical causes: the schedule counts epochs but is stepped per batch (or vice versa), the scheduler's max_steps is
    smaller than that of the training, gradient accumulation is not taken into account, several ranks step the same
    scheduler.

    What to try: compute the scheduler's total steps from the training loop; set a minimum learning rate.

    A rate that is small but not zero is not reported; if the loss is flat with it, loss-plateau reports that.

    Known false positives: a parameter group that is frozen intentionally and whose learning rate is logged separately.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Fraction of the rows with a learning rate of zero, and the minimum number of rows."""

        share: float = 0.3
        points: int = 5

    code = "LRS002"
    name = "lr-zero"
    severity = "warning"

    def detect(self, view: View) -> Iterator[Finding]:
        rates = [s.finite for s in view.of("lr") if len(s.finite) >= self.options.points]
        if not rates:
            raise NotChecked("no learning rate found")
        dead = [
            (s, at) for s in rates if (at := dead_from(s)) is not None and len(s) - at > self.options.share * len(s)
        ]
        if len(dead) < len(rates):
            return  # another parameter group is still trained
        series, at = dead[0]
        if not series.value.any() and any(falls(s.value) for s in view.of("loss")):
            return  # the model learns: it is printed with too few decimals
        rows = len(series) - at
        zero = "almost zero" if series.value[at:].any() else "zero"
        yield self.found(
            series,
            at,
            f"{series.tag} is {zero} from step {series.step[at]} on ({rows} of {len(series)} rows)",
            end=len(series) - 1,
            evidence={"rows": rows, "points": len(series), "peak": series.value.max(), "value": series.value[at]},
        )
