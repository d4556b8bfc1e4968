from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.core.stats import median
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.last_good import last_good_checkpoint
from postmortem.diagnoses.shared.story import NONFINITE, Story, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_LOST = 0.2
"""Share of the entropy of the first updates below which a policy hardly explores."""
_SHORTLY = 6
"""Logged rewards, or a fiftieth of all if these are more, before the fall: a running mean of the reward falls late."""


@diagnosis
class ScoreCollapse:
    """The training unlearned what it had learned: a reward rose, fell again and stayed low to the end of the log.

    A loss that jumps or rises where the reward falls (that of a critic, which predicts rewards that no longer come) is
    a consequence of it. One that does so long before, a non-finite value up to then, or an exploding gradient is not:
    then the reward is a consequence.
    """

    name = "score-collapse"
    priority = 48  # before "diverged"

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [f for f in named(findings, "score-collapse") if f.severity != "info" and role(view, f) == "reward"]
        root = next(iter(found), None)
        if root is None or root.step is None:
            return None
        losses = _losses_with_it(view, findings, root.step)
        if any(f.severity == "error" and f not in losses for f in findings):
            return None
        if any((f.step or 0) <= root.step for f in named(findings, *NONFINITE)):
            return None
        best = last_good_checkpoint(view, root.step)
        where = f"restart from {best.path} (step {best.step})" if best is not None else "restart from before that step"
        entropy = _entropy(view, root.step)
        unknown = "" if "; " in root.message else " The log does not show why."
        return (
            Story(view, root, losses)
            .last_good(before=min([root.step, *(f.step for f in losses if f.step is not None)]))
            .because(entropy, *(f.message for f in losses[:2]))
            .disproved_by("the task, the reward or the opponents changed at that step")
            .advise(
                f"{where}, with a lower learning rate or a smaller clip range, or a penalty on the KL divergence",
                "raise the weight of the entropy, or lower it later" if entropy else None,
                "look at what the policy does before and after the fall: it may have found a way to a reward "
                "that the later updates do not give any more",
            )
            .diagnosis(
                "score-collapse",
                f"The policy lost what it had learned: {root.message}.{unknown}",
                "possible",
            )
        )


def _losses_with_it(view: View, findings: tuple[Finding, ...], fell: int) -> list[Finding]:
    """The finite losses that jump or rise from the few updates before the fall of the reward on."""
    reward = view.main("reward")
    steps = np.empty(0, np.int64) if reward is None else reward.step
    before = steps[max(0, int(np.searchsorted(steps, fell)) - max(_SHORTLY, len(steps) // 50)) :][:1]
    first = int(before[0]) if len(before) else fell
    return [f for f in named(findings, "loss-spike", "divergence") if f.step is not None and f.step >= first]


def _entropy(view: View, step: int) -> str | None:
    """In words: the entropy of the policy, where one is logged and lies far below its first level from then on."""
    for series in (s.finite for s in view.series if "entropy" in s.tag.lower() and s.role is None):
        size, after = np.abs(series.value), series.step >= step
        first = median(size[: max(3, len(size) // 20)]) if len(size) else 0.0
        if after.any() and median(size[after]) < _LOST * first:
            return (
                f"{series.tag} is about {number(median(series.value[after]), 3)} from then on, after "
                f"{number(float(series.value[0]), 3)} at the start: the policy hardly explores"
            )
    return None
