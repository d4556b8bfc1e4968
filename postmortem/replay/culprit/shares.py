"""Which samples carry a loss that jumped: their losses, beside those of calm batches at the same weights."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from postmortem.replay.culprit.group_testing import find_samples
from postmortem.replay.rerun.by_sample import BySample
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.replay.culprit.course import Course
    from postmortem.replay.culprit.group_testing import Make
    from postmortem.replay.rerun.reruns import Reruns

_CALM_BATCHES = 2  # whose samples are compared
_FEW = 4  # a group that was found by reruns alone is at most this part of the batch
_COST = 0.05  # share of the excess that a sample has to carry


@dataclass(slots=True)
class Carriers:
    """The samples that carry a jump. share: their part of the excess of all samples over the calm ones, None if it is
    not known. losses, calm: largest loss of theirs, and the largest of a sample of calm batches. how: in words."""

    samples: list[int]
    how: str
    share: float | None = None
    losses: dict[int, float] = field(default_factory=dict)
    calm: float = math.nan
    norms: dict[int, float] = field(default_factory=dict)


class Shares:
    """The per-sample values of the step `step` of a course."""

    def __init__(self, course: Course, reruns: Reruns, step: int) -> None:
        self.course, self.reruns, self.step = course, reruns, step
        self.samples = reruns.samples
        self.by_sample = BySample(course.runner, course.before(step))

    def carriers(self, limit: float) -> Carriers | None:
        """The samples without which the loss of the step is at most `limit`; None if there are no particular ones."""
        found = self._by_loss() or self._by_gradient()
        if found is not None and self._calm_without(found.samples, limit):
            return found
        return self._by_reruns(limit)

    def _calm(self, ask: Any) -> list[float]:
        """Per-sample values of calm batches at the weights of the step."""
        values: list[float] = []
        for step in self.course.probes(self.step)[-_CALM_BATCHES:]:
            batch = self.course.runner.again(step)
            samples = type(self.samples)(self.course.runner.train_step, batch)
            values += (ask(batch, samples) or []) if samples.size else []
        return values

    def _by_loss(self) -> Carriers | None:
        losses = self.by_sample.losses(self.reruns.batch, self.samples)
        calm = self._calm(self.by_sample.losses) if losses else []
        found = _outstanding(losses or [], calm)
        if found is None or losses is None:
            return None
        middle = statistics.median(calm)
        excess = [max(0.0, x - middle) for x in losses]
        share = sum(excess[i] for i in found) / (sum(excess) or 1.0)
        how = f"per-sample losses ({self.by_sample.how})"
        return Carriers(found, how, share, {i: losses[i] for i in found}, max(calm))

    def _by_gradient(self) -> Carriers | None:
        everything = range(self.samples.size)
        norms = self.by_sample.gradient_norms(self.reruns.batch, self.samples, everything)
        if norms is None:
            return None

        def of_batch(batch: Any, samples: Any) -> list[float]:
            return list((self.by_sample.gradient_norms(batch, samples, range(samples.size)) or {}).values())

        found = _outstanding([norms[i] for i in everything], self._calm(of_batch))
        if found is None:
            return None
        how = f"per-sample gradient norms ({self.by_sample.how})"
        return Carriers(found, how, None, {}, math.nan, {i: norms[i] for i in found})

    def add_norms(self, found: Carriers) -> float | None:
        """Adds the gradient norms of the carriers; returns the median of some of the other samples, None if unknown."""
        others = [i for i in range(self.samples.size) if i not in found.samples][:8]
        norms = self.by_sample.gradient_norms(self.reruns.batch, self.samples, [*found.samples, *others])
        if norms is None or not others:
            return None
        found.norms = {i: norms[i] for i in found.samples}
        return statistics.median(norms[i] for i in others)

    def _value(self, make: Any) -> float | None:
        """What the finding is about, of the step on a changed batch; None if it could not be run."""
        until: Literal["loss", "grad"] = "grad" if self.course.sought.gradient else "loss"
        self.course.runner.restore(self.course.before(self.step))
        try:
            result = self.course.runner.run(self.reruns.batch, self.step, overrides=Overrides(batch=make), until=until)
        except Exception:  # noqa: BLE001  (user code may raise anything on another batch)
            return None
        return result.grad_norm if self.course.sought.gradient else result.loss

    def without(self, samples: list[int]) -> float | None:
        """The value of the step without these samples; if it cannot be run so, with healthy ones in their place."""
        rest = [i for i in range(self.samples.size) if i not in samples]
        value = self._value(self.samples.drop(samples))
        return self._value(self.samples.replace(samples, rest)) if value is None else value

    def _calm_without(self, samples: list[int], limit: float) -> bool:
        value = self.without(samples) if len(samples) < self.samples.size else None
        return value is not None and value <= limit

    def _by_reruns(self, limit: float) -> Carriers | None:
        """By groups, where samples cannot be run alone (batch statistics)."""

        def fails(make: Make) -> bool | None:
            value = self._value(make(self.samples))
            return None if value is None else not value <= limit

        if self.samples.size < 2:
            return None
        found, how = find_samples(self.samples.size, [], fails, odd=self.samples.odd(self.reruns.batch))
        if not found or _FEW * len(found) > self.samples.size or not self._calm_without(sorted(found), limit):
            return None
        return Carriers(sorted(found), how)


def _outstanding(values: list[float], calm: list[float]) -> list[int] | None:
    """The samples above every calm one by more than these differ among themselves; None if there are none, or if they
    are half of the batch and more."""
    if len(values) < 2 or len(calm) < 2:
        return None
    middle, highest = statistics.median(calm), max(calm)
    limit = highest + 0.5 * (highest - middle)
    excess = sum(max(0.0, x - middle) for x in values)
    found = [i for i, x in enumerate(values) if x > limit and x - middle > _COST * excess]
    return found if found and 2 * len(found) <= len(values) else None
