"""What is known about a failing step while its culprit is searched."""

from __future__ import annotations

import linecache
import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from postmortem.core.culprit import Culprit
from postmortem.replay.culprit.course import Course
from postmortem.replay.fixes import Case, conclude, try_fixes
from postmortem.replay.fixes.precision import measure_precision
from postmortem.replay.rerun.session import TRIES, Failure, Outside, Session, Stage, Traced
from postmortem.replay.trace.tracer import Tracer, Within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import torch

    from postmortem.replay.rerun.candidates import Candidate
    from postmortem.replay.rerun.determinism import Again
    from postmortem.replay.roll.sought import Sought


class Investigation:
    """A step, its reruns, and what the stages of the diagnosis have found.

    reruns: the session that runs the step again. failure: what was known before. step: the step at fault, None if
    every step is finite; `last` is then the last step, else the same. reported: the log reports a failed run.
    fixes: whether fixes are tried. sought: the finding of finite values that is looked for. trail: notes on what
    established the culprit, in the order in which they were found. times: how many reruns in a row must be finite
    to count as a cure. traced: the traced step, once a stage has traced it.
    """

    traced: Traced

    def __init__(
        self,
        reruns: Session,
        failure: Failure,
        *,
        fixes: bool,
        reported: bool = False,
        times: int = 1,
        sought: Sought | None = None,
    ) -> None:
        self.reruns, self.failure, self.samples = reruns, failure, reruns.samples
        self.fixes, self.reported, self.times = fixes, reported, times
        self.step, self.last = failure.step, failure.last
        if failure.raised is not None:
            reruns.raised = failure.raised.site
        self.trail: list[str] = []
        self.sought = sought
        self._determinism_unknown = False
        self._within: Within = "others"

    @property
    def stage(self) -> Stage:
        """What fails first in the traced step: the loss, a gradient or a parameter."""
        assert self.traced.stage is not None
        return self.traced.stage

    def expect(self, again: Again) -> None:
        """Sets how many reruns must be finite to count as a cure, from the result of running the step again."""
        # rounding noise (atomic additions) does not cure a failure; one that comes and goes may be absent by chance
        needed = 1
        if not again.deterministic:
            needed = TRIES if again.comes_and_goes else 2
        luck = self.reruns.luck
        luck.times = self.times = max(self.times, needed)
        first = self.last == self.failure.first and not math.isfinite(self.failure.loss)
        luck.determinism_unknown = self._determinism_unknown = self.times == 1 and first

    # ---- tracing

    def trace(
        self,
        repair: Mapping[int, Callable[[torch.Tensor], Any]] | None = None,
        mask: Collection[Outside] = (),
    ) -> Traced:
        """A traced rerun. If a parameter fails, the step is traced again inside the optimizer, and together with the
        rest only if non-finite values were seen there.

        repair: operator -> function that repairs its output. mask: tensors from outside whose non-finite values are
        set to zero.
        """
        traced = self.trace_once(repair, mask)
        if traced.stage == "param" and self._within == "others":
            self._within = "all" if traced.log.hits else "optimizers"
            self.reruns.unfused = True
            apart = self.trace_once(repair, mask)
            self.reruns.unfused = apart.stage == "param"
            traced = apart if self.reruns.unfused else self.trace_once(repair, mask)
        return traced

    def trace_once(
        self,
        repair: Mapping[int, Callable[[torch.Tensor], Any]] | None = None,
        mask: Collection[Outside] = (),
        change: Callable[[Any], Any] | None = None,
        samples: int = 0,
        after: Callable[[Any], Any] | None = None,
    ) -> Traced:
        """A traced rerun, on a GPU in two passes. samples: as in `Tracer`. The rest is as in `Session.trace`."""
        suspects = None
        if self.reruns.device != "cpu":
            flags = Tracer(deferred=True, repair=repair, within=self._within)
            suspects = set(self.reruns.trace(flags, mask=mask, change=change).suspects)
        tracer = Tracer(detail=suspects, repair=repair, within=self._within, samples=samples)
        return self.reruns.trace(tracer, mask=mask, change=change, after=after)

    @cached_property
    def course(self) -> Course | None:
        """The steps around the finding that is looked for; None where there is none, or the replay does not show it."""
        if self.sought is None or self.sought.kind == "still" or self.reruns.rolled is None:
            return None
        return Course.of(self.reruns.rolled, self.sought)

    # ---- the answer

    def culprit(self, **facts: Any) -> Culprit:
        """A culprit with these fields and the trail so far."""
        return Culprit(**{"step": self.step, "how": tuple(self.trail)} | facts)

    def with_fixes(self, facts: dict[str, Any], candidate: Candidate | None = None) -> Culprit:
        """A culprit with these fields and the fixes that were tried on the step."""
        tried = Case(self.culprit(**facts), self.reruns, self.samples, self.stage, self.trail)
        tried.course = self.failure.course
        if candidate is not None:
            tried.op, tried.where = candidate.op, candidate.hits[0].where
        if not self.reruns.once:
            measure_precision(tried)
        if self.fixes and not self.reruns.once:
            try_fixes(tried)
        if self.times > 1:
            luck = f"a fix cures it if {self.times} reruns in a row are finite"
            self.trail.append(f"the step is not deterministic: {luck}")
        elif self._determinism_unknown and not self.reruns.luck.determinism_unknown:
            self.trail.append("two finite reruns of the step give the same losses: deterministic")
        conclude(tried)
        return replace(tried.found, how=tuple(self.trail))


def code_at(file: str | None, line: int | None) -> str | None:
    """The source line, without indentation; None if there is none."""
    return linecache.getline(file, line).strip() or None if file and line else None


def owner(parameter: str | None) -> str | None:
    """The qualified name of the module that owns a parameter."""
    return None if parameter is None else parameter.rpartition(".")[0]
