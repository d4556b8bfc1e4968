"""Reruns of one step from the state before it: unchanged, under a change, or under the tracer."""

from __future__ import annotations

import itertools
import math
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from postmortem.core.errors import ReplayError
from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.errors import StopAt
from postmortem.replay.step.names import plain_name
from postmortem.replay.step.overrides import NOTHING, Overrides
from postmortem.replay.trace.origins import origins
from postmortem.replay.trace.tensors import exact_bits, nonfinite_names, storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from postmortem.replay.step.precision import Precision
    from postmortem.replay.step.result import StepResult
    from postmortem.replay.step.runner import StepRunner
    from postmortem.replay.step.state import State
    from postmortem.replay.trace.records import Origin, TraceLog
    from postmortem.replay.trace.tracer import Tracer

Stage = Literal["loss", "grad", "param"]
_STAGES: tuple[Stage, ...] = ("loss", "grad", "param")
TRIES = 10
"""Consecutive finite reruns of a nondeterministic step that are unlikely to be chance."""
_UNTIL: dict[str, Literal["loss", "grad", "step"]] = {"loss": "loss", "grad": "grad", "param": "step"}


def error_site(error: Exception) -> tuple[Any, ...]:
    """Class, file and line of an exception: equal if a rerun fails as the step did."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return type(error), places[-1]


@dataclass(slots=True)
class Luck:
    """Decides how many consecutive finite reruns count as a cure, as a nondeterministic step may be finite by chance.

    times: consecutive finite reruns needed. determinism_unknown: the step's own losses cannot show whether it is
    deterministic, so the first finite rerun is made twice.
    """

    times: int = 1
    determinism_unknown: bool = False

    def enough(self, runs: int, losses: Collection[str]) -> bool:
        """True if `runs` finite reruns, which gave these different losses, are a cure."""
        if len(losses) > 1 and self.times == 1:
            self.times = TRIES
        return runs >= max(self.times, 2 if self.determinism_unknown and losses else 1)


@dataclass(slots=True)
class Traced:
    """A traced rerun: where it first failed, which operators wrote the non-finite tensors, and what is known by
    storage.

    stage: the first of loss, grad and param with non-finite values, None if all are finite; `names` and `sources` are
    those of the non-finite tensors (a source is an operator's index, or a negative storage key for a tensor from
    outside). backward_ended: number of operators up to the end of the last backward pass. known: storage key ->
    ("parameter" | "optimizer" | "batch", name). raised: what the step raised, in the pass that `stage` names; `sources`
    then holds everything non-finite. buffers: names of tensors that are no parameters. strides: parameters whose
    gradient has other strides, as (name, gradient's strides, parameter's strides, source of the gradient). starts:
    (step, number of operators before it) of each step that was run.
    """

    tracer: Tracer
    stage: Stage | None = None
    names: list[str] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    loss: float | None = None
    batch: Any = None
    backward_ended: int = 0
    known: dict[int, tuple[str, str]] = field(default_factory=dict)
    raised: Exception | None = None
    buffers: set[str] = field(default_factory=set)
    strides: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def log(self) -> TraceLog:
        """What the tracer recorded."""
        return self.tracer.log

    def origins(self) -> list[Origin]:
        """Where the non-finite values of the step began."""
        return origins(self.log, self.sources)

    def step_of(self, index: int) -> int:
        """The step in which an operator ran."""
        return next(step for step, start in reversed(self.starts) if index >= start)


class Reruns:
    """Reruns of the step `step` of `runner` from the state `before`, on the stored `batch`. `runs` counts them.

    lead: the steps before it that belong to every rerun; `before` is then the state before the first of them. raised:
    class and place of what the step raises when it fails, if it does (known once the step was traced). unfused: while
    operators are watched, optimizers update in single operators, as a fused kernel hides which one fails. failure: why
    the last rerun could not be done. losses: of the last rerun.
    """

    def __init__(self, runner: StepRunner, before: State, batch: Any, step: int) -> None:
        self.runner, self.before, self.batch, self.step = runner, before, batch, step
        self.lead: Sequence[int] = ()
        self.runs = 0
        self.unfused = False
        self.failure = ""
        self.losses: dict[str, float] = {}
        self.raised: tuple[Any, ...] | None = None
        self.luck = Luck()
        train_step = runner.train_step
        self.whole = not isinstance(train_step.step, dict)
        """There are no sub-steps, whose forward passes need the optimizer steps before them."""
        self.simple = train_step.accumulate == 1 and self.whole
        """One forward and one backward pass: an early end does not change the operators before it."""
        self._sub_step: int | None = None
        """Index of the sub-step that fails first."""

    def run(
        self,
        overrides: Overrides = NOTHING,
        *,
        until: Stage = "param",
        modes: tuple[AbstractContextManager[Any], ...] = (),
        prepare: Callable[[], None] | None = None,
    ) -> Stage | None:
        """Reruns the step up to `until` and returns where it first has non-finite values, None if nowhere.

        modes: contexts to run it in. prepare: called after the state is restored. Exceptions of the step propagate.
        """
        self._restore(prepare)
        passed = 0

        def stop_early(kind: str, tensors: dict[str, torch.Tensor]) -> None:
            nonlocal passed
            with _disable_current_modes():
                if kind == "loss":
                    if not all(math.isfinite(float(t.detach())) for t in tensors.values()):
                        raise StopAt("loss")
                    return
                if until == "param" and self.whole and nonfinite_names(tensors):
                    raise StopAt("grad")  # whatever the optimizer does with it
                if until != "param" and passed == self._sub_step:  # this one had failed
                    raise StopAt("grad" if until == "grad" and nonfinite_names(tensors) else None)
                passed += 1

        try:
            with self.runner.observing(stop_early), ExitStack() as stack:
                if modes:
                    stack.enter_context(self._operator_by_operator())
                for mode in modes:
                    stack.enter_context(mode)
                early = self.simple or (self.whole and not modes)
                result = self._run(overrides, until=_UNTIL[until] if early else "step")
                self.losses = result.losses
                return result.first_nonfinite
        except StopAt as stop:
            return stop.stage

    def fails(
        self, overrides: Overrides = NOTHING, *, at: Stage = "param", alike: bool = False, **options: Any
    ) -> bool | None:
        """True if the step still fails at stage `at` or earlier, False if not.

        None if it could not be run (see `failure`) or, with alike=True, if it failed earlier, for another reason. A
        finite rerun is repeated as often as `luck` requires. Other keywords are those of `run`.
        """
        losses: set[str] = set()
        for runs in itertools.count(1):
            failed = self._fails_once(overrides, at, alike, options)
            if failed is False and self.losses:
                losses.add(repr(self.losses))
            if self.luck.enough(runs, losses) or failed is not False:
                break
        self.luck.determinism_unknown = self.luck.determinism_unknown and not losses
        return failed

    def _fails_once(self, overrides: Overrides, at: Stage, alike: bool, options: dict[str, Any]) -> bool | None:
        self.losses = {}
        try:
            found = self.run(overrides, until=at, **options)
        except Exception as error:  # noqa: BLE001  (user code may raise anything under an unforeseen change)
            self.failure = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
            return True if error_site(error) == self.raised else None
        if alike and found is not None and _STAGES.index(found) < _STAGES.index(at):
            self.failure = {"loss": "the loss is", "grad": "a gradient is"}.get(found, "a parameter is") + " non-finite"
            return None
        return found is not None and _STAGES.index(found) <= _STAGES.index(at)

    def _restore(self, prepare: Callable[[], None] | None = None) -> None:
        self.runs += 1
        self.runner.restore(self.before)
        if prepare is not None:
            prepare()

    def in_precision(self, dtype: Precision) -> tuple[bool | None, str]:
        """(whether the step fails if all of it is run in `dtype`, None if it could not be run; a note).

        If explicit casts in its code prevent that, it is run again with these casts to `dtype`.
        """
        fails = self.fails(Overrides(dtype=dtype))
        if fails is not None:
            return fails, ""
        why = self.failure
        fails = self.fails(Overrides(dtype=dtype, casts_follow=True))
        self.failure = why
        return (
            fails,
            "; could not be run: " + why if fails is None else ", without the casts in the code to a narrower dtype",
        )

    def plain(self) -> StepResult:
        """One unchanged rerun."""
        self._restore()
        return self._run(NOTHING)

    def _run(
        self,
        overrides: Overrides,
        *,
        until: Literal["loss", "grad", "step"] = "step",
        starts: Callable[[int], None] = lambda step: None,
    ) -> StepResult:
        """Runs the step after those that lead to it. `starts(step)` is called before each of them."""
        if not self.lead:
            starts(self.step)
            return self.runner.run(self.batch, self.step, overrides=overrides, until=until)
        with self.runner.under(overrides):
            with self.runner.observing(None):
                for step in self.lead:
                    starts(step)
                    self.runner.run(self.runner.draw(step), step)
            starts(self.step)
            return self.runner.run(self.runner.draw(self.step), self.step, until=until)

    def trace(
        self,
        tracer: Tracer,
        prepare: Callable[[], None] | None = None,
        change: Callable[[Any], Any] | None = None,
    ) -> Traced:
        """A rerun under the tracer up to the first non-finite loss, gradient or parameter.

        prepare: called after the state is restored. change: applied to the batch.
        """
        self._restore(prepare)
        out = Traced(tracer)
        watch = _Watch(self.runner, tracer, out)

        def keep(batch: Any) -> Any:
            out.batch = batch = change(batch) if change is not None else batch
            tracer.disown(tensors_in(batch))  # the runner copied it
            return batch

        try:
            with self.runner.observing(watch), self._operator_by_operator(), tracer:
                result = self._run(Overrides(batch=keep), starts=lambda step: out.starts.append((step, tracer.count)))
            if result.bad_params:
                out.stage, out.names = "param", result.bad_params
                tensors = self.state_tensors()
                out.sources = [tracer.source(tensors[name]) for name in result.bad_params]
        except StopAt:
            pass
        except ReplayError:
            raise
        except Exception as error:  # noqa: BLE001  (code that rejects NaN, the user's or torch's, may raise anything)
            out.stage, out.raised, self.raised = watch.reached, error, error_site(error)
        if self._sub_step is None and out.stage in ("loss", "grad"):
            self._sub_step = watch.passed
        out.known = self._known(out.batch)
        if out.raised is not None:
            outside = [*tensors_in(out.batch), *self.state_tensors().values()]
            out.sources = [*out.log.hits, *(-storage_key(t) for t in outside if exact_bits(t))]
        out.buffers = set(self.state_tensors()) - set(self.runner.named_parameters())
        return out

    @contextmanager
    def _operator_by_operator(self) -> Iterator[None]:
        """With `unfused`, fused optimizers update in single operators; a scaler then skips their steps like others'."""
        optimizers = [o for o in self.runner.optimizers.values() if hasattr(o, "param_groups")] if self.unfused else []
        groups = [g for o in optimizers for g in o.param_groups if g.get("fused")]
        scaling = [o for o in optimizers if vars(o).get("_step_supports_amp_scaling")]
        for group in groups:
            group["fused"] = False
        for o in scaling:
            o._step_supports_amp_scaling = False
        try:
            yield
        finally:
            for group in groups:
                group["fused"] = True
            for o in scaling:
                o._step_supports_amp_scaling = True

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name."""
        out: dict[str, torch.Tensor] = dict(self.runner.named_parameters())
        for key, model in self.runner.models.items():
            out |= {plain_name(key, name): b for name, b in model.named_buffers()}
        return out

    def optimizer_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """(name of the parameter, tensor) of the optimizers' state."""
        names = {id(p): name for name, p in self.runner.named_parameters().items()}
        return [
            (names.get(id(p), ""), t)
            for optimizer in self.runner.optimizers.values()
            for p, state in getattr(optimizer, "state", {}).items()
            for t in tensors_in(state)
        ]

    def _known(self, batch: Any) -> dict[int, tuple[str, str]]:
        known = {storage_key(t): ("batch", "") for t in tensors_in(batch)}
        known |= {storage_key(t): ("optimizer", name) for name, t in self.optimizer_tensors()}
        known |= {storage_key(t): ("parameter", name) for name, t in reversed(list(self.state_tensors().items()))}
        return known


class _Watch:
    """The observer of a traced rerun: notes in `out` which losses or gradients are non-finite and ends the step
    there."""

    def __init__(self, runner: StepRunner, tracer: Tracer, out: Traced) -> None:
        self.runner, self.tracer, self.out = runner, tracer, out
        self.reached: Stage = "loss"
        """The pass that is running."""
        self.passed = 0
        """Number of sub-steps whose gradients are finite."""

    def __call__(self, kind: Literal["loss", "grad"], tensors: dict[str, torch.Tensor]) -> None:
        out, tracer = self.out, self.tracer
        self.reached = "grad" if kind == "loss" else "param"
        with _disable_current_modes():
            bad = {name: tensors[name] for name in nonfinite_names({n: t.detach() for n, t in tensors.items()})}
            if kind == "loss":
                tracer.passes += 1
                out.loss = sum(float(t.detach()) for t in tensors.values())
            if bad:
                out.stage, out.names = kind, list(bad)
                out.sources = [tracer.source(t) for t in bad.values()]
                raise StopAt(kind)
            if kind == "grad":
                self.passed += 1
                out.backward_ended = tracer.count
                for name, p in self.runner.named_parameters().items():
                    if p.grad is not None and p.grad.layout == torch.strided and p.grad.stride() != p.stride():
                        out.strides.append((name, p.grad.stride(), p.stride(), tracer.source(p.grad)))
