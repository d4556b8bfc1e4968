"""Finds a reward that collapses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from postmortem.plugins import BaseDetector, NotChecked, detector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.plugins import Finding, View


@detector
class RewardCollapse(BaseDetector):
    """The reward falls to a fraction of its best and stays there.

    What it looks for: the first step from which on the reward is below `share` of its best so far, to the end of the
    run.

    Why it matters: a policy that collapsed seldom recovers; the weights from before are the ones to keep.

    How: a comparison with the running maximum; no statistics.

    Typical causes: a learning rate that is too high, a KL penalty that is too weak, an entropy that ran out.

    What to try: go back to the checkpoint before; lower the learning rate; clip the policy's updates.

    Known false positives: a task that becomes harder on purpose (a curriculum).
    """

    code = "RWD001"
    name = "reward-collapse"
    severity = "error"

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """`share` of the best reward, below which it is collapsed; `points` that the fall lasts at least."""

        share: float = 0.2
        points: int = 5

    def detect(self, view: View) -> Iterator[Finding]:
        """The first step of a fall that lasts; NotChecked where no reward is logged."""
        series = view.main("reward")
        if series is None:
            raise NotChecked("no reward found")
        best = np.maximum.accumulate(series.value)
        low = series.value < self.options.share * best
        last_high = np.flatnonzero(~low)[-1] if not low.all() else -1
        start = int(last_high) + 1
        if len(series) - start < self.options.points:
            return
        before, at = float(best[start]), float(series.value[start])
        message = f"{series.tag} falls from its best of {before:.4g} to {at:.4g} and stays low"
        yield self.found(series, start, message, end=len(series) - 1, evidence={"best": before, "at": at})
