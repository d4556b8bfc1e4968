"""`localize`: who made this step fail. Drives the tracing engine over reruns of the step, cheapest question first."""

from __future__ import annotations

import functools
import linecache
import math
import sys
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from postmortem.core.culprit import Cause, Culprit, Established, Phase
from postmortem.replay.culprit.confirm import Confirm
from postmortem.replay.culprit.divergence import divergence, far_off
from postmortem.replay.culprit.earlier_step import from_earlier
from postmortem.replay.culprit.sample_hints import Readings, are_outliers
from postmortem.replay.fixes import Case, conclude, try_fixes
from postmortem.replay.fixes.precision import measure_precision
from postmortem.replay.recipe.check import wrong
from postmortem.replay.recipe.load import call_user, describe
from postmortem.replay.rerun import determinism as repeat
from postmortem.replay.rerun.candidates import Candidate, candidates
from postmortem.replay.rerun.reruns import TRIES, Session, Stage, Traced, kind_of_error
from postmortem.replay.rerun.samples import Samples
from postmortem.replay.roll import roll as rolling
from postmortem.replay.step.runner import Overrides, ReplayError, StepRunner, plain_name
from postmortem.replay.step.state import preserved
from postmortem.replay.trace.operators import canonical
from postmortem.replay.trace.tensors import NAN
from postmortem.replay.trace.tracer import Tracer, Within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.replay.model import TrainStep

_OUTSIDE: dict[str, tuple[Phase, Cause]] = {
    "batch": ("data", "bad-input"), "parameter": ("parameters", "bad-parameter"), "optimizer": ("optimizer", "bad-parameter"),
}  # fmt: skip
_MANY_STEPS = 1_000_000


def localize(
    train_step: TrainStep,
    *,
    step: int | None = None,
    device: Any = None,
    fixes: bool = True,
    runner: StepRunner | None = None,
    rolled: rolling.Roll | None = None,
) -> Culprit:
    """The culprit of the first step in which a loss, a gradient or a parameter is not finite.

    step: the last step to look at, as the log counts (default: all batches of a list, the one `batch`). fixes=False leaves
    the repairs untried. runner, rolled: steps that were rolled forward already. device: where the reruns take place;
    by default where the model is.

    A step that raises because of a value that is not finite (an assertion, an argument check of torch.distributions) is
    traced up to there. Model, optimizer, random generators, hooks and flags are as before when it returns or raises.
    Raises ReplayError where the step cannot be run as it is.
    """
    if (fault := wrong(train_step)) is not None:
        raise ReplayError(fault)
    runner = runner or StepRunner(train_step)
    if device is not None and str(device).partition(":")[0] != runner.device.type:
        raise ReplayError(f"the model is on {runner.device}, not on {device}: build it there (the recipe's ctx.device)")
    origin = runner.snapshot()
    with preserved(runner.models.values()), warnings.catch_warnings(), _eager(runner) as compiled:
        warnings.simplefilter("ignore")
        try:
            done = rolled or call_user("the batches", _roll, runner, train_step, step)
            if rolled is None and done.fault is not None:
                done.again = call_user("the step, run again,", functools.partial(repeat.run_again, behind=True), runner, done, done.fault)
            case = _Case(runner, done, fixes, rolled is not None)
            found = case.culprit()
            if case.session.times > case.times:  # what was found was perhaps luck
                found = _Case(runner, done, fixes, rolled is not None, TRIES).culprit()
        finally:
            runner.observe = None
            runner.restore(origin)
    if compiled:
        found = replace(found, how=(*found.how, "compiled code was run eagerly: operators inside it cannot be seen"))
    return found


def _eager(runner: StepRunner) -> Any:
    """torch.compile off while it lasts; gives whether something is known to be compiled."""
    if "torch._dynamo" not in sys.modules:  # torch.compile imports it
        return nullcontext(False)
    from torch._dynamo.eval_frame import OptimizedModule

    modules = [m for model in [*runner.models.values(), *runner.outside.modules.values()] for m in model.modules()]
    return _without_compiling(
        runner.outside.compiled or any(isinstance(m, OptimizedModule) or getattr(m, "_compiled_call_impl", None) for m in modules)
    )


@contextmanager
def _without_compiling(known: bool) -> Iterator[bool]:
    stance = torch.compiler.set_stance("force_eager") if hasattr(torch.compiler, "set_stance") else torch._dynamo.config.patch(disable=True)
    with stance:
        yield known


def _roll(runner: StepRunner, train_step: TrainStep, step: int | None) -> rolling.Roll:
    batches = train_step.batches
    if batches is None:
        only = step if step is not None else int(train_step.first_step or 0)
        return rolling.roll(runner, only, only)
    first = int(train_step.first_step or 0)
    if step is not None:
        return rolling.roll(runner, first, max(first, step))
    if callable(batches):
        raise ReplayError("batches is a function of the step: say which step is the last to look at (step=)")
    known = getattr(batches, "__len__", None)
    return rolling.roll(runner, first, first + (max(known(), 1) - 1 if known is not None else _MANY_STEPS))


@dataclass
class _Case:
    """One diagnosis: what is known so far."""

    runner: StepRunner
    roll: rolling.Roll
    fixes: bool
    told: bool
    """The steps were handed over rolled: someone saw in the log that they went wrong."""
    times: int = 1
    """How often in a row a rerun has to be finite to be no luck."""
    untold: bool = False
    """Nothing that is finite was seen twice so far."""
    how: list[str] = field(default_factory=list)
    _within: Within = "others"

    # ---- stages

    def culprit(self) -> Culprit:
        roll = self.roll
        step = roll.fault if roll.fault is not None else roll.overflow
        at = roll.last if step is None else step
        self.session = Session(self.runner, roll.before, self._batch(at), at)
        if roll.raised is not None:
            self.session.raised = kind_of_error(roll.raised)
        self.samples = Samples(self.runner.train_step, self.session.batch)
        self.names = {
            id(m): plain_name(key, name)
            for key, model in [*self.runner.outside.modules.items(), *self.runner.models.items()]
            for name, m in model.named_modules()
        }
        if step is None:
            grew = roll.last - roll.first >= 2 and (self.told or far_off(roll))
            found = divergence(self.runner, roll, at, self.how, fixes=self.fixes) if grew else None
            return found or self._layout(at)
        diverged = divergence(self.runner, roll, step, self.how, fixes=self.fixes)
        if diverged is not None:
            return diverged
        if roll.again is not None:
            self.how += [] if self.told else [roll.again.said]
            if roll.again.transient:
                return Culprit(cause="transient", phase="none", step=step, how=tuple(self.how), established="observed")
            # noise of rounding, as of atomic additions, leaves a fault as it is; one that comes and goes is cured by luck, too
            self.times = max(self.times, 1 if roll.again.deterministic else TRIES if roll.again.comes_and_goes else 2)
            self.session.times = self.times
            self.untold = self.session.untold = self.times == 1 and step == roll.first and not math.isfinite(roll.result(step).loss)
        traced = next(filter(lambda t: t.stage is not None, (self._trace() for _ in range(self.session.times))), None)
        if traced is None or traced.stage is None:
            return self._unstable(step)
        if traced.raised is not None:
            self.how.append(describe("the step", traced.raised))
        self.stage: Stage = traced.stage
        if roll.overflow is not None and self.session.fails(Overrides(loss_scale=1.0)) is False:
            return self._scaler(step, traced)
        if self.stage == "grad" and self.runner.scaler is not None and self.session.fails(Overrides(loss_scale=1.0)) is False:
            return self._scaler(step, traced)
        traced = self._with_earlier(traced)
        chosen, established = Confirm(self.session, self.samples, self.names, self._trace, self.how).choose(traced)
        if traced.raised is not None and established != "cured":
            raise ReplayError(describe(f"step {step}", traced.raised)) from traced.raised
        return self._finish(step, traced, chosen, established)

    def _with_earlier(self, traced: Traced) -> Traced:
        """The step traced together with the steps before it, where one of those left behind what it fails over."""

        def retrace(longer: Session) -> Traced:
            self.session = longer
            return self._trace()

        alone = self.session
        found = from_earlier(alone, self.roll, traced, retrace)
        self.session = found[0] if found else alone
        return found[1] if found else traced

    def _batch(self, step: int) -> Any:
        self.runner.restore(self.roll.before)
        return self.runner.again(step)

    def _trace(self, repair: dict[int, Callable[[torch.Tensor], Any]] | None = None, prepare: Callable[[], None] | None = None) -> Traced:
        """A traced rerun. Where a parameter fails it is done again inside the optimizer, with the rest only if that had anything odd."""
        traced = self._traced(repair, prepare)
        if traced.stage == "param" and self._within == "others":
            self._within = "all" if traced.tracer.hits else "optimizers"
            self.session.unfused = True
            apart = self._traced(repair, prepare)
            self.session.unfused = apart.stage == "param"
            traced = apart if self.session.unfused else self._traced(repair, prepare)
        return traced

    def _traced(
        self,
        repair: dict[int, Callable[[torch.Tensor], Any]] | None = None,
        prepare: Callable[[], None] | None = None,
        change: Callable[[Any], Any] | None = None,
        samples: int = 0,
    ) -> Traced:
        suspects = None
        if self.runner.device.type != "cpu":
            suspects = set(self.session.trace(Tracer(deferred=True, repair=repair, within=self._within), prepare, change).tracer.suspects)
        return self.session.trace(Tracer(detail=suspects, repair=repair, within=self._within, samples=samples), prepare, change)

    def _unstable(self, step: int) -> Culprit:
        if self.roll.raised is not None:
            raise ReplayError(describe(f"step {step}", self.roll.raised)) from self.roll.raised
        again = self.session.plain().first_nonfinite
        if again is None:
            self.how.append("rerun from the same state with the same random numbers, the step is finite: not deterministic, or faulty hardware")
            return Culprit(cause="transient", phase="none", step=step, how=tuple(self.how), established="observed")
        self.how.append("the step fails, but not while its operators are watched")
        return Culprit(cause="none", phase="none", step=step, how=tuple(self.how), established="inferred")

    def _layout(self, step: int) -> Culprit:
        traced = self._trace()
        if traced.stage is not None or not traced.strides:
            return Culprit(cause="none", phase="none", step=None, how=("every loss, gradient and parameter is finite",), established="observed")
        name, grad, own, source = traced.strides[0]
        place = self.session.trace(Tracer(origin_of=source)).tracer.origin
        module = self._owner(name)
        op = canonical(place[0]) if place[0] else None
        file, line = (place[1].file, place[1].line) if place[1].file else (None, None)
        self.how.append("everything is finite; the gradient that backward makes has other strides than the parameter (DDP copies it, and warns)")
        found = Culprit(
            cause="layout", phase="layout", module=module, op=op, file=file, line=line, code=_code(file, line), param=name, step=step,
            tensor={"grad_strides": list(grad), "param_strides": list(own)}, samples=None, precision_only=None, established="observed",
        )  # fmt: skip
        case = Case(found, self.session, self.samples, None, self.how, where=place[1])
        try_fixes(case)
        return replace(case.found, how=tuple(self.how))

    def _scaler(self, step: int, traced: Traced) -> Culprit:
        chosen = candidates(traced, self.names)
        hit = chosen[0] if chosen else None
        self.how.append(f"with a loss scale of 1 instead of {self.roll.results[-1].scale:g} the gradients are finite")
        found = Culprit(
            cause="loss-scale", phase="scaler", module=hit.module if hit else None, op=canonical(hit.op) if hit and hit.op else None,
            step=step, param=traced.names[0] if traced.names else None, established="cured",
        )  # fmt: skip
        return self._repaired(found, None)

    # ---- what else is to be said of it

    def _finish(self, step: int, traced: Traced, chosen: list[Candidate], established: Established) -> Culprit:
        if not chosen:
            self.how.append(f"the {self.stage} is not finite, but no operator was seen that made it so")
            return self._repaired(Culprit(cause="forward-op", phase="forward", step=step, established="inferred"), None)
        c = chosen[0]
        phase, cause = self._phase(c)
        hit = c.hits[0]
        file, line = hit.where.file, hit.where.line or None
        found = Culprit(
            cause=cause, phase=phase, module=c.module, op=canonical(c.op) if c.op else None, file=file, line=line if file else None,
            code=_code(file, line), step=step, tensor=_tensor(hit), established=established,
        )  # fmt: skip
        if c.outside is None and any(t.bits and t.source < 0 and -t.source not in traced.known for t in hit.inputs):
            self.how.append("what it read was not finite already, from code that cannot be watched: another thread, an extension, numpy")
        if phase == "optimizer":
            name = c.outside[1] if c.outside is not None else traced.names[0] if traced.names else None
            if c.outside is not None:
                self.how.append(f"the optimizer's state of {name} was not finite before the step")
            rate = next((r.lr for r in self.roll.results if r.step == step), 0.0)
            if not math.isfinite(rate):
                self.how.append(f"the learning rate of the step is {rate}")
            found = replace(found, module=self._owner(name), param=name)
        elif phase == "parameters":
            name = c.outside[1] if c.outside else None
            found = replace(found, module=self._owner(name), param=name, op=None)
        elif phase == "data":
            found = replace(found, module=None, op=None)
        elif phase == "backward" and traced.names:
            found = replace(found, param=traced.names[0])
        made = traced.step_of(hit.index) if c.outside is None else step
        if made < step:
            self.how.append(f"made in step {made}, where loss, gradients and parameters stay finite, and kept for step {step}")
        samples, note = None, ""
        if made == step and phase in ("forward", "backward", "data") and self.samples.size > 1:
            samples, note = Readings(self.session, self.samples, self.names, self._traced).find(phase, chosen, traced)
        if note:
            self.how.append(f"samples: {note}")
        found = replace(found, samples=None if samples is None else tuple(samples))
        if phase in ("forward", "backward") and not any(t.bits for t in hit.inputs) and are_outliers(samples, self.session, self.samples):
            self.how.append("the samples named hold finite values far outside the others' range; clamped to 1e4, the step is fine")
            found = replace(found, phase="data", cause="bad-input", module=None, op=None)
        return self._repaired(found, c)

    def _phase(self, c: Candidate) -> tuple[Phase, Cause]:
        if c.outside is not None:
            return _OUTSIDE[c.outside[0]]
        hit = c.hits[0]
        if hit.stage == "optimizer":
            return "optimizer", "optimizer-update"
        half = hit.half and not c.bits & NAN
        if hit.backward:
            return "backward", "dtype-overflow" if half else "backward-singularity"
        return "forward", "dtype-overflow" if half else "forward-op"

    def _owner(self, name: str | None) -> str | None:
        return None if name is None else name.rpartition(".")[0]

    def _repaired(self, found: Culprit, c: Candidate | None) -> Culprit:
        case = Case(found, self.session, self.samples, self.stage, self.how, op=c.op if c else None, where=c.hits[0].where if c else None)
        measure_precision(case)
        if self.fixes:
            try_fixes(case)
        if self.times > 1:
            self.how.append(f"the step is not deterministic: cured is what leaves it finite {self.times} times in a row")
        elif self.untold and not self.session.untold:
            self.how.append("where it is finite, the step gives the same bits twice: deterministic")
        conclude(case)
        return replace(case.found, how=tuple(self.how))


def _tensor(hit: Any) -> dict[str, Any]:
    return {
        "inputs": [t.stats for t in hit.inputs if t.stats],
        "output": next((t.stats for t in hit.outputs if t.bits and t.stats), {}),
    }


def _code(file: str | None, line: int | None) -> str | None:
    return linecache.getline(file, line).strip() or None if file and line else None
