"""What is known about a failing step while its culprit is searched."""

from __future__ import annotations

import linecache
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.core.culprit import Culprit
from postmortem.replay.fixes import Case, conclude, try_fixes
from postmortem.replay.fixes.precision import measure_precision
from postmortem.replay.rerun.reruns import TRIES, Reruns, Stage, Traced, error_site
from postmortem.replay.rerun.samples import Samples
from postmortem.replay.step.names import plain_name
from postmortem.replay.trace.tracer import Tracer, Within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from postmortem.replay.rerun.candidates import Candidate
    from postmortem.replay.rerun.determinism import Again, Fault
    from postmortem.replay.step.runner import StepRunner


class Investigation:
    """A step, its reruns, and what the stages of the diagnosis have found.

    step: the step at fault, None if every step is finite; `last` is then the last step, else the same. roll: the steps
    up to it. again: the result of running it again, None if that was not done. reported: the log reports a failed
    run. fixes: whether fixes are tried. names: id of a module -> its qualified name. trail: notes on what
    established the culprit, in the order in which they were found. times: how many reruns in a row must be finite to
    count as a cure. traced: the traced step, once a stage has traced it.
    """

    traced: Traced

    def __init__(self, runner: StepRunner, fault: Fault, *, fixes: bool, reported: bool, times: int = 1) -> None:
        self.runner, self.roll, self.again = runner, fault.roll, fault.again
        self.fixes, self.reported, self.times = fixes, reported, times
        self.step = self.roll.fault if self.roll.fault is not None else self.roll.overflow
        self.last = self.roll.last if self.step is None else self.step
        runner.restore(self.roll.before)
        self.reruns = Reruns(runner, self.roll.before, runner.again(self.last), self.last)
        if self.roll.raised is not None:
            self.reruns.raised = error_site(self.roll.raised)
        self.samples = Samples(runner.train_step, self.reruns.batch)
        self.names: Mapping[int, str] = {
            id(m): plain_name(key, name)
            for key, model in [*runner.outside.modules.items(), *runner.models.items()]
            for name, m in model.named_modules()
        }
        self.trail: list[str] = []
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
        first = self.last == self.roll.first and not math.isfinite(self.roll.result(self.last).loss)
        luck.determinism_unknown = self._determinism_unknown = self.times == 1 and first

    # ---- tracing

    def trace(
        self,
        repair: Mapping[int, Callable[[torch.Tensor], Any]] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Traced:
        """A traced rerun. If a parameter fails, the step is traced again inside the optimizer, and together with the
        rest only if non-finite values were seen there.

        repair: operator -> function that repairs its output. prepare: called after the state is restored.
        """
        traced = self.trace_once(repair, prepare)
        if traced.stage == "param" and self._within == "others":
            self._within = "all" if traced.log.hits else "optimizers"
            self.reruns.unfused = True
            apart = self.trace_once(repair, prepare)
            self.reruns.unfused = apart.stage == "param"
            traced = apart if self.reruns.unfused else self.trace_once(repair, prepare)
        return traced

    def trace_once(
        self,
        repair: Mapping[int, Callable[[torch.Tensor], Any]] | None = None,
        prepare: Callable[[], None] | None = None,
        change: Callable[[Any], Any] | None = None,
        samples: int = 0,
    ) -> Traced:
        """A traced rerun, on a GPU in two passes. change: applied to the batch. samples: as in `Tracer`."""
        suspects = None
        if self.runner.device.type != "cpu":
            flags = Tracer(deferred=True, repair=repair, within=self._within)
            suspects = set(self.reruns.trace(flags, prepare, change).tracer.suspects)
        tracer = Tracer(detail=suspects, repair=repair, within=self._within, samples=samples)
        return self.reruns.trace(tracer, prepare, change)

    # ---- the answer

    def culprit(self, **facts: Any) -> Culprit:
        """A culprit with these fields and the trail so far."""
        return Culprit(**{"step": self.step, "how": tuple(self.trail)} | facts)

    def with_fixes(self, facts: dict[str, Any], candidate: Candidate | None = None) -> Culprit:
        """A culprit with these fields and the fixes that were tried on the step."""
        tried = Case(self.culprit(**facts), self.reruns, self.samples, self.stage, self.trail)
        if candidate is not None:
            tried.op, tried.where = candidate.op, candidate.hits[0].where
        measure_precision(tried)
        if self.fixes:
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
