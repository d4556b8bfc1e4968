"""Reruns of one step from the state before it: unchanged, under a change, or under the tracer."""

from __future__ import annotations

import copy
import itertools
import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from postmortem.core.errors import ReplayError
from postmortem.replay.recipe.user_errors import describe
from postmortem.replay.rerun.samples import Samples
from postmortem.replay.rerun.session import Luck, Outside, Rolled, Stage, Traced, in_precision, judged, mask_values
from postmortem.replay.step.batches import tensors_in
from postmortem.replay.step.errors import Raised, Site, StopAt, error_site
from postmortem.replay.step.names import plain_name
from postmortem.replay.step.overrides import NOTHING, Overrides
from postmortem.replay.step.rng import Rng
from postmortem.replay.trace.tensors import exact_bits, nonfinite_names, storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from postmortem.replay.roll.roll import Roll
    from postmortem.replay.step.precision import Precision
    from postmortem.replay.step.result import StepResult
    from postmortem.replay.step.runner import StepRunner
    from postmortem.replay.step.state import State
    from postmortem.replay.trace.tracer import Tracer

_UNTIL: dict[str, Literal["loss", "grad", "step"]] = {"loss": "loss", "grad": "grad", "param": "step"}
_HALF = (torch.float16, torch.bfloat16)


class Reruns:
    """The session of the step `step` of a TrainStep, which is run again in this process, on the stored batch.

    With `lead`, the restored state is that before the first of these steps. losses: of the last rerun.
    """

    def __init__(self, runner: StepRunner, roll: Roll, step: int) -> None:
        self._runner, self._before, self.step = runner, roll.before, step
        self.rolled: Rolled | None = Rolled(runner, roll, self.longer)
        runner.restore(roll.before)
        train_step = runner.train_step
        self.batch: Any = runner.again(step)
        self.samples = Samples(train_step, self.batch)
        self.lead: Sequence[int] = ()
        self.luck = Luck()
        self.whole = not isinstance(train_step.step, dict)
        self.unfused = False
        self.autocast: str | None = train_step.autocast
        self.scaled = runner.scaler is not None
        self.device: str = runner.device.type
        self.once = False
        self.failure = ""
        self.raised: Site | None = None
        self.losses: dict[str, float] = {}
        self._simple = train_step.accumulate == 1 and self.whole
        """One forward and one backward pass: an early end does not change the operators before it."""
        self._sub_step: int | None = None
        """Index of the sub-step that fails first."""
        self._modules = {
            id(m): plain_name(key, name)
            for key, model in [*runner.outside.modules.items(), *runner.models.items()]
            for name, m in model.named_modules()
        }

    def longer(self, before: State, lead: Sequence[int]) -> Reruns:
        """Reruns that begin with the steps `lead` at the state `before`."""
        other = copy.copy(self)
        other._before, other.lead = before, lead
        return other

    def run(
        self,
        overrides: Overrides = NOTHING,
        *,
        until: Stage = "param",
        modes: tuple[AbstractContextManager[Any], ...] = (),
        mask: Collection[Outside] = (),
    ) -> Stage | None:
        """Reruns the step up to `until` and returns where it first has non-finite values, None if nowhere.

        modes, mask: as in `fails`. Exceptions of the step propagate.
        """
        self._restore(mask)
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
            with self._runner.observing(stop_early), ExitStack() as stack:
                if modes:
                    stack.enter_context(self._operator_by_operator())
                for mode in modes:
                    stack.enter_context(mode)
                early = self._simple or (self.whole and not modes)
                result = self._run(overrides, until=_UNTIL[until] if early else "step")
                self.losses = result.losses
                return result.first_nonfinite
        except StopAt as stop:
            return stop.stage

    @property
    def loss(self) -> float | None:
        """See `Session`."""
        return sum(self.losses.values()) if self.losses else None

    def fails(
        self, overrides: Overrides = NOTHING, *, at: Stage = "param", alike: bool = False, **options: Any
    ) -> bool | None:
        """See `Session`."""
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
        failed, why = judged(found, at, alike=alike)
        self.failure = why or self.failure
        return failed

    def _restore(self, mask: Collection[Outside] = ()) -> None:
        self._runner.restore(self._before)
        if not mask:
            return
        parameters = list(self.state_tensors().items())
        states = [(name, t) for name, t in self.optimizer_tensors() if t.is_floating_point()]
        with torch.no_grad():
            for kind, tensors in (("parameter", parameters), ("optimizer", states)):
                for name, t in tensors:
                    if (kind, name) in mask:
                        mask_values(t)

    def in_precision(self, dtype: Precision) -> tuple[bool | None, str]:
        """See `Session`."""
        return in_precision(self, dtype)

    def finite_again(self) -> bool:
        """See `Session`."""
        self._restore()
        return self._run(NOTHING).first_nonfinite is None

    def half(self) -> bool:
        """See `Session`."""
        self._restore()  # a rerun in another precision leaves its dtypes
        return any(p.dtype in _HALF for p in self._runner.named_parameters().values())

    def has_state(self) -> bool:
        """See `Session`."""
        self._restore()
        return bool(self.optimizer_tensors())

    def draws_nothing(self, *, at: Stage) -> bool:
        """See `Session`."""
        generators = self._runner.outside.generators
        self._restore()
        before = Rng.capture(generators)
        self.fails(at=at)
        return Rng.capture(generators).same(before)

    def bad_before(self) -> set[Outside]:
        """See `Session`."""
        if self.rolled is not None:
            self._runner.restore(self.rolled.roll.start)
        kept = [("parameter", name, t) for name, t in self.state_tensors().items()]
        kept += [("optimizer", name, t) for name, t in self.optimizer_tensors()]
        return {("batch", ""), *((kind, name) for kind, name, t in kept if exact_bits(t))}

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
            return self._runner.run(self.batch, self.step, overrides=overrides, until=until)
        with self._runner.under(overrides):
            with self._runner.observing(None):
                for step in self.lead:
                    starts(step)
                    self._runner.run(self._runner.draw(step), step)
            starts(self.step)
            return self._runner.run(self._runner.draw(self.step), self.step, until=until)

    def trace(
        self,
        tracer: Tracer,
        *,
        modes: tuple[AbstractContextManager[Any], ...] = (),
        mask: Collection[Outside] = (),
        change: Callable[[Any], Any] | None = None,
        after: Callable[[Any], Any] | None = None,
    ) -> Traced:
        """See `Session`."""
        self._restore(mask)
        out = Traced()
        watch = _Watch(self._runner, tracer, out)
        given: Any = None

        def keep(batch: Any) -> Any:
            nonlocal given
            given = batch = change(batch) if change is not None else batch
            tracer.disown(tensors_in(batch))  # the runner copied it
            return batch

        try:
            with self._runner.observing(watch), self._operator_by_operator(), ExitStack() as stack:
                for mode in (*modes, tracer):
                    stack.enter_context(mode)
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
            out.stage, out.raised = watch.reached, Raised(describe("", error), error_site(error))
            self.raised = out.raised.site
        if self._sub_step is None and out.stage in ("loss", "grad"):
            self._sub_step = watch.passed
        out.known = self._known(given)
        if out.raised is not None:
            outside = [*tensors_in(given), *self.state_tensors().values()]
            out.sources = [*tracer.log.hits, *(-storage_key(t) for t in outside if exact_bits(t))]
        out.buffers = set(self.state_tensors()) - set(self._runner.named_parameters())
        out.seen = None if after is None else after(given)
        out.close(tracer, self._modules)
        return out

    @contextmanager
    def _operator_by_operator(self) -> Iterator[None]:
        """With `unfused`, fused optimizers update in single operators; a scaler then skips their steps like others'."""
        optimizers = [o for o in self._runner.optimizers.values() if hasattr(o, "param_groups")] if self.unfused else []
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
        out: dict[str, torch.Tensor] = dict(self._runner.named_parameters())
        for key, model in self._runner.models.items():
            out |= {plain_name(key, name): b for name, b in model.named_buffers()}
        return out

    def optimizer_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """(name of the parameter, tensor) of the optimizers' state."""
        names = {id(p): name for name, p in self._runner.named_parameters().items()}
        return [
            (names.get(id(p), ""), t)
            for optimizer in self._runner.optimizers.values()
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
