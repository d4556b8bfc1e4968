"""Reruns of one step from the state before it, changed in one way or another."""

from __future__ import annotations

import itertools
import math
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.runner import NOTHING, Overrides, ReplayError, StepResult, StepRunner, plain_name
from postmortem.replay.trace.tensors import exact_bits, nonfinite_names, storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from postmortem.replay.step.precision import Precision
    from postmortem.replay.step.state import State
    from postmortem.replay.trace.tracer import Tracer

Stage = Literal["loss", "grad", "param"]
_STAGES: tuple[Stage, ...] = ("loss", "grad", "param")
TRIES = 10  # finite runs in a row that are hardly luck
_UNTIL: dict[str, Literal["loss", "grad", "step"]] = {"loss": "loss", "grad": "grad", "param": "step"}


def kind_of_error(error: Exception) -> tuple[Any, ...]:
    """Class and innermost place of an exception: equal where a rerun fails as the step did."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return type(error), places[-1]


class _Enough(Exception):
    pass


class _Bad(Exception):
    pass


class _Passed(Exception):
    """What had failed is past, and all of it is finite now."""


@dataclass(slots=True)
class Traced:
    """A traced rerun: where it went wrong first, the operators that wrote what is wrong, and what tensors are by storage."""

    tracer: Tracer
    stage: Stage | None = None
    names: list[str] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    loss: float | None = None
    batch: Any = None
    backward_ended: int = 0
    """The number of operators up to the last backward pass."""
    known: dict[int, tuple[str, str]] = field(default_factory=dict)
    """storage -> ("parameter" | "optimizer" | "batch", name)."""
    raised: Exception | None = None
    """The step raised this in the pass that `stage` names. The sources are then all that was not finite."""
    buffers: set[str] = field(default_factory=set)
    strides: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = field(default_factory=list)
    """Parameters whose gradient has other strides: name, gradient's, parameter's, source of the gradient."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(step, number of operators before it) of each step that was run."""

    def step_of(self, index: int) -> int:
        """The step in which an operator ran."""
        return next(step for step, start in reversed(self.starts) if index >= start)


class Session:
    """The step `step` of `runner`, rerun at will from `before` on the kept `batch`. `runs` counts the reruns.

    `lead`: the steps before it that belong to every rerun, where `before` is the state before the first of them.
    """

    def __init__(self, runner: StepRunner, before: State, batch: Any, step: int) -> None:
        self.runner, self.before, self.batch, self.step = runner, before, batch, step
        self.lead: Sequence[int] = ()
        self.runs = 0
        self.unfused = False
        """Reruns that are watched let optimizers take their update in single operators: a fused kernel does not say which one fails."""
        self.failure = ""
        self.losses: dict[str, float] = {}
        self.raised: tuple[Any, ...] | None = None
        """What the step raises when it fails, and where, if it does (known once it was traced)."""
        self.times = 1
        """How often in a row a rerun has to be finite to count as cured: more than once where the step is not deterministic."""
        self.untold = False
        """The step's own numbers do not say whether it is deterministic: the first finite rerun is made twice, to see."""
        train_step = runner.train_step
        self.whole = not isinstance(train_step.step, dict)
        """There are no sub-steps, in which a forward pass needs the optimizers' steps before it."""
        self.simple = train_step.accumulate == 1 and self.whole
        """One forward and one backward pass: ending early leaves the operators before the end as they are."""
        self._sub_step: int | None = None
        """The sub-step that fails first, of several optimizers: 0 is the first."""

    def run(
        self,
        overrides: Overrides = NOTHING,
        *,
        until: Stage = "param",
        modes: tuple[AbstractContextManager[Any], ...] = (),
        prepare: Callable[[], None] | None = None,
    ) -> Stage | None:
        """Reruns the step up to `until` and says what is not finite first. What the step raises comes through."""
        self.runs += 1
        self.runner.restore(self.before)
        if prepare is not None:
            prepare()

        passed = 0

        def stop_early(kind: str, tensors: dict[str, torch.Tensor]) -> None:
            nonlocal passed
            with _disable_current_modes():
                if kind == "loss" and not all(math.isfinite(float(t.detach())) for t in tensors.values()):
                    raise _Enough
                if kind == "grad" and until == "param" and self.whole and nonfinite_names(tensors):
                    raise _Bad  # whatever the optimizer makes of it
                if kind == "grad" and until != "param" and passed == self._sub_step:
                    raise _Bad if until == "grad" and nonfinite_names(tensors) else _Passed
                passed += kind == "grad"

        self.runner.observe = stop_early
        try:
            with ExitStack() as stack:
                if modes:
                    stack.enter_context(self._operator_by_operator())
                for mode in modes:
                    stack.enter_context(mode)
                early = self.simple or (self.whole and not modes)
                result = self._run(overrides, until=_UNTIL[until] if early else "step")
                self.losses = result.losses
                return result.first_nonfinite
        except _Enough:
            return "loss"
        except _Bad:
            return "grad"
        except _Passed:
            return None
        finally:
            self.runner.observe = None

    def fails(self, overrides: Overrides = NOTHING, *, at: Stage = "param", alike: bool = False, **how: Any) -> bool | None:
        """Whether the step still fails, at the stage `at` or before; None, with the reason in `failure`, where it could
        not be run so, or, asked for failures `alike`, where it fails before `at` and so over something else."""
        seen: set[str] = set()
        for done in itertools.count(1):
            found = self._fails(overrides, at, alike, how)
            if found is False and self.losses:
                seen.add(repr(self.losses))
            if len(seen) > 1 and self.times == 1:
                self.times = TRIES
            if found is not False or done >= max(self.times, 2 if self.untold and seen else 1):
                break
        self.untold = self.untold and not seen
        return found

    def _fails(self, overrides: Overrides, at: Stage, alike: bool, how: dict[str, Any]) -> bool | None:
        self.losses = {}
        try:
            found = self.run(overrides, until=at, **how)
            if alike and found is not None and _STAGES.index(found) < _STAGES.index(at):
                self.failure = f"the {found} is not finite"
                return None
            return found is not None and _STAGES.index(found) <= _STAGES.index(at)
        except Exception as error:  # noqa: BLE001  (user code under a change it was not written for may raise anything)
            self.failure = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
            return True if kind_of_error(error) == self.raised else None

    def in_precision(self, dtype: Precision) -> tuple[bool | None, str]:
        """Whether the step, as a whole in that precision, still fails (None: not run), and a remark.

        Where casts in its code keep it from being run so, they follow.
        """
        fails = self.fails(Overrides(dtype=dtype))
        if fails is not None:
            return fails, ""
        why = self.failure
        fails = self.fails(Overrides(dtype=dtype, casts_follow=True))
        self.failure = why
        return fails, "; could not be run: " + why if fails is None else ", casts in the code to a narrower type left out"

    def plain(self) -> StepResult:
        self.runs += 1
        self.runner.restore(self.before)
        return self._run(NOTHING)

    def _run(
        self, overrides: Overrides, *, until: Literal["loss", "grad", "step"] = "step", starts: Callable[[int], None] = lambda step: None
    ) -> StepResult:
        """The step, after those that lead to it. `starts` is called before each."""
        if not self.lead:
            starts(self.step)
            return self.runner.run(self.batch, self.step, overrides=overrides, until=until)
        watch, self.runner.observe = self.runner.observe, None
        with self.runner.under(overrides):
            for step in self.lead:
                starts(step)
                self.runner.run(self.runner.draw(step), step)
            starts(self.step)
            self.runner.observe = watch
            return self.runner.run(self.runner.draw(self.step), self.step, until=until)

    def trace(self, tracer: Tracer, prepare: Callable[[], None] | None = None, change: Callable[[Any], Any] | None = None) -> Traced:
        """A rerun under the tracer, on the batch as `change` makes it, up to the first loss, gradient or parameter that is not finite."""
        self.runs += 1
        self.runner.restore(self.before)
        if prepare is not None:
            prepare()
        out = Traced(tracer)
        reached: Stage = "loss"
        passed = 0

        def keep(batch: Any) -> Any:
            batch = change(batch) if change is not None else batch
            out.batch = batch
            tracer.disown(tensors_in(batch))  # the runner copied it
            return batch

        def look(kind: Literal["loss", "grad"], tensors: dict[str, torch.Tensor]) -> None:
            nonlocal reached, passed
            reached = "grad" if kind == "loss" else "param"
            with _disable_current_modes():
                bad = {name: tensors[name] for name in nonfinite_names({n: t.detach() for n, t in tensors.items()})}
                if kind == "loss":
                    tracer.passes += 1
                    out.loss = sum(float(t.detach()) for t in tensors.values())
                if bad:
                    out.stage, out.names = kind, list(bad)
                    out.sources = [tracer.source(t) for t in bad.values()]
                    raise _Enough
                passed += kind == "grad"
                if kind == "grad":
                    out.backward_ended = tracer.count
                    for name, p in self.runner.named_parameters().items():
                        if p.grad is not None and p.grad.layout == torch.strided and p.grad.stride() != p.stride():
                            out.strides.append((name, p.grad.stride(), p.stride(), tracer.source(p.grad)))

        self.runner.observe = look
        try:
            with self._operator_by_operator(), tracer:
                result = self._run(Overrides(batch=keep), starts=lambda step: out.starts.append((step, tracer.count)))
            if result.bad_params:
                out.stage, out.names = "param", result.bad_params
                tensors = self.state_tensors()
                out.sources = [tracer.source(tensors[name]) for name in result.bad_params]
        except _Enough:
            pass
        except ReplayError:
            raise
        except Exception as error:  # noqa: BLE001  (user code that refuses NaN, or torch's, may raise anything)
            out.stage, out.raised, self.raised = reached, error, kind_of_error(error)
        finally:
            self.runner.observe = None
        if self._sub_step is None and out.stage in ("loss", "grad"):
            self._sub_step = passed
        out.known = self._known(out.batch)
        if out.raised is not None:
            outside = [*tensors_in(out.batch), *self.state_tensors().values()]
            out.sources = [*tracer.hits, *(-storage_key(t) for t in outside if exact_bits(t))]
        out.buffers = set(self.state_tensors()) - set(self.runner.named_parameters())
        return out

    @contextmanager
    def _operator_by_operator(self) -> Iterator[None]:
        """Fused optimizers take their steps unfused, if so asked: a scaler then skips them as it does others."""
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
        """(parameter's name, tensor) of the optimizers' state."""
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
