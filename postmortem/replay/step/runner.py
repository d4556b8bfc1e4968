"""Runs one training step as `TrainStep` defines it, from a state that can be restored.

The runner only runs steps; its callers choose the step and interpret the result. A rerun uses the stored batch and the
random state after that batch was drawn::

    runner = StepRunner(train_step)
    batch = runner.draw(step)       # before_step(step), then the batch
    before = runner.snapshot()      # the state before the step, with the random state after the draw
    result = runner.run(batch, step)
    runner.restore(before)          # a rerun is identical bit for bit
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from postmortem.core.errors import ReplayError
from postmortem.replay.step.batches import clone_tensor, tensor_map
from postmortem.replay.step.errors import BatchError, exits_are_errors
from postmortem.replay.step.names import by_name, plain_name
from postmortem.replay.step.overrides import NOTHING, Overrides
from postmortem.replay.step.precision import DTYPES, CastsFollow, NoiseStays, cast, cast_state
from postmortem.replay.step.python_state import Outside
from postmortem.replay.step.result import StepResult
from postmortem.replay.step.rng import Rng
from postmortem.replay.step.state import State, drawing
from postmortem.replay.trace.tensors import nonfinite_names, total_norm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.replay.model import TrainStep


Observer = Callable[[Literal["loss", "grad"], dict[str, torch.Tensor]], None]
"""Called with the named losses after each forward pass and with the gradients before they are clipped."""


class StepRunner:
    """Runs steps of `train_step`. `models` and `optimizers` are dicts by name; `schedulers` is a list."""

    def __init__(self, train_step: TrainStep) -> None:
        self.train_step = train_step
        self.models: dict[str, torch.nn.Module] = by_name(train_step.model, "")
        self.optimizers: dict[str, Any] = by_name(train_step.optimizer, "")
        scheduler = train_step.scheduler
        if isinstance(scheduler, dict):
            scheduler = list(scheduler.values())
        elif scheduler is not None and not isinstance(scheduler, (list, tuple)):
            scheduler = [scheduler]
        self.schedulers: list[Any] = list(scheduler or ())
        first = next((p for m in self.models.values() for p in m.parameters()), None)
        self.device: torch.device = torch.device("cpu") if first is None else first.device
        self.scaler = self._make_scaler()
        self._observer: Observer | None = None
        self.outside = Outside(train_step, self.models.values(), self._native_optimizers())
        self._iterator: Iterator[Any] | None = None
        self._kept: dict[int, tuple[Any, Rng]] = {}
        self._buffers: set[str] | None = None
        self._overrides = NOTHING

    def _make_scaler(self) -> Any:
        asked = self.train_step.scaler
        if not asked:
            return None
        if asked is not True:
            return asked
        init = self.train_step.init_scale
        return torch.amp.GradScaler(self.device.type, init_scale=2.0**16 if init is None else float(init))

    def snapshot(self, into: State | None = None) -> State:
        """A copy of the present state; with `into`, written into the memory of that state."""
        if into is not None:
            into.refresh()
            return into
        modules = [*self.models.values(), *self.outside.modules.values()]
        return State(modules, self.optimizers.values(), self.schedulers, self.scaler, self.outside)

    def restore(self, state: State) -> None:
        """Restores `state`, the random generators last."""
        state.restore()

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter once; with several models, names begin with the model's name."""
        return {plain_name(key, name): p for key, model in self.models.items() for name, p in model.named_parameters()}

    def _finite_buffers(self) -> dict[str, torch.Tensor]:
        """The persistent buffers that were finite before the first step: a mask may hold -inf, statistics must not
        become NaN."""
        found = {
            plain_name(key, path, name): t
            for key, model in self.models.items()
            for path, module in model.named_modules()
            for name, t in module._buffers.items()
            if t is not None and name not in module._non_persistent_buffers_set
        }
        if self._buffers is None:
            self._buffers = set(found) - set(nonfinite_names(found))
        return {name: t for name, t in found.items() if name in self._buffers}

    def draw(self, step: int) -> Any:
        """Calls `before_step(step)` and returns the batch of `step`. The batch is drawn once and stored with the random
        state after the draw; later calls return the stored batch and set that random state.

        Raises ReplayError if there are no more batches, BatchError if the user's code raises.
        """
        try:
            if self.train_step.before_step is not None:
                with exits_are_errors():
                    self.train_step.before_step(step)
            if step in self._kept:
                batch, rng = self._kept[step]
                rng.restore()
                return batch
            with exits_are_errors(), drawing(self.outside):
                batch = self._ask(step)
        except ReplayError:
            raise
        except Exception as error:
            raise BatchError(step) from error
        self._kept[step] = batch, Rng.capture(self.outside.generators)
        return batch

    def _ask(self, step: int) -> Any:
        batches = self.train_step.batches
        if batches is None:
            return self.train_step.batch
        if callable(batches):
            return batches(step)
        if self._iterator is None:
            self._iterator = iter(batches)
        try:
            return next(self._iterator)
        except StopIteration:
            raise ReplayError(f"the recipe's batches end before step {step}: {len(self._kept)} were given") from None

    def again(self, step: int) -> Any:
        """The stored batch of `step`, for a rerun from a state that was taken after `draw`, which includes
        `before_step`."""
        return self._kept[step][0]

    @contextmanager
    def observing(self, observer: Observer | None) -> Iterator[None]:
        """Steps run inside call `observer`, which may end a step early by raising StopAt."""
        before, self._observer = self._observer, observer
        try:
            yield
        finally:
            self._observer = before

    @contextmanager
    def under(self, overrides: Overrides) -> Iterator[None]:
        """All steps run inside use `overrides`. Restore a snapshot afterwards: dtypes and state have changed."""
        self._overrides = overrides
        default = torch.get_default_dtype()
        try:
            if overrides.fresh_optimizer:
                for optimizer in self._native_optimizers():
                    optimizer.state.clear()
            if overrides.loss_scale is not None and self.scaler is not None:
                self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": overrides.loss_scale})
            if overrides.dtype is not None and not self._only_autocast():
                models = [*self.models.values(), *self.outside.modules.values()]
                cast_state(models, self._native_optimizers(), DTYPES[overrides.dtype], self.outside.objects)
                if overrides.dtype == "fp64":
                    torch.set_default_dtype(torch.float64)
            yield
        finally:
            torch.set_default_dtype(default)
            self._overrides = NOTHING

    def run(
        self,
        batch: Any,
        step: int,
        *,
        overrides: Overrides | None = None,
        until: Literal["loss", "grad", "step"] = "step",
    ) -> StepResult:
        """Runs one step from the present state and leaves the state after it.

        The step runs to its end even if the loss is non-finite, as it did in training. `until` ends it after the
        forward pass ("loss") or the backward pass ("grad"). The batch is copied first, as a step may write into it.
        """
        if overrides is not None and overrides != NOTHING:
            with self.under(overrides):
                return self.run(batch, step, until=until)
        overrides = self._overrides
        dtype = None if overrides.dtype is None or self._only_autocast() else DTYPES[overrides.dtype]
        batch = tensor_map(clone_tensor, batch)
        if overrides.batch is not None:
            batch = overrides.batch(batch)
        if dtype is not None:
            batch = tensor_map(functools.partial(cast, dtype=dtype), batch)
        if self._buffers is None:
            self._finite_buffers()
        result = StepResult(step=step, loss=math.nan, losses={})
        result.scale = self.scaler.get_scale() if self.scaler is not None else 1.0
        groups = (g for o in self._native_optimizers() for g in o.param_groups if "lr" in g)
        result.lr = next((float(g["lr"]) for g in groups), math.nan)
        casts = CastsFollow(DTYPES[overrides.dtype]) if overrides.casts_follow and overrides.dtype else nullcontext()
        noise: Any = nullcontext() if dtype is None else NoiseStays()
        norms: list[float] = []
        with exits_are_errors(), torch.enable_grad(), casts, noise:
            for names, function in self._sub_steps():
                norm = self._sub_step(names, function, batch, result, until)
                if norm is not None:
                    norms.append(norm)
        result.loss = functools.reduce(operator.add, result.losses.values())
        result.grad_norm = math.sqrt(sum(n * n for n in norms)) if norms else math.nan
        if until == "step":
            self._after_the_optimizers(result.loss)
            result.bad_params = nonfinite_names(self.named_parameters() | self._finite_buffers())
        if not all(map(math.isfinite, result.losses.values())):
            result.first_nonfinite = "loss"
        elif result.bad_grads or result.bad_params:
            result.first_nonfinite = "grad" if result.bad_grads else "param"
        return result

    def _after_the_optimizers(self, loss: float) -> None:
        if self.scaler is not None:
            self.scaler.update()
        for scheduler in self.schedulers:
            takes_metric = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(loss) if takes_metric else scheduler.step()

    def _sub_steps(self) -> list[tuple[list[str], Any]]:
        step = self.train_step.step
        if isinstance(step, dict):
            return [([name], function) for name, function in step.items()]
        return [(list(self.optimizers), step)]

    def _sub_step(self, names: list[str], function: Any, batch: Any, result: StepResult, until: str) -> float | None:
        """zero_grad, forward, backward, unscale, clip and optimizer step of the optimizers `names`; returns their
        gradient norm, None if the step ends after the forward pass."""
        optimizers = [self.optimizers[n] for n in names]
        for optimizer in optimizers:
            optimizer.zero_grad()
        single = names[0] if isinstance(self.train_step.step, dict) else "loss"
        parts = self._micro_batches(batch)
        self._passes(function, parts, single, result, backward=until != "loss")
        if until == "loss":
            return None
        if self.scaler is not None:
            for optimizer in optimizers:
                self.scaler.unscale_(optimizer)
        owned = self._owned(optimizers)
        gradients = {name: p.grad for name, p in owned.items() if p.grad is not None}
        if self._observer is not None:
            self._observer("grad", gradients)
        norm = total_norm(gradients)
        if not math.isfinite(norm):
            result.bad_grads += nonfinite_names(gradients)
        clip = self._overrides.clip if self._overrides.clip is not None else self.train_step.clip
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(owned.values()), clip)
        if until == "step":
            loss = sum(result.losses.values())
            for optimizer in optimizers:
                with self._changed_groups(optimizer):
                    if self.scaler is not None:
                        result.skipped |= found_inf(self.scaler, optimizer)
                        self.scaler.step(optimizer)
                    elif needs_closure(optimizer):
                        optimizer.step(self._closure(names, function, parts, single, loss))
                    else:
                        optimizer.step()
        return norm

    def _micro_batches(self, batch: Any) -> Any:
        count = self.train_step.accumulate
        if count == 1:
            return [batch]
        if not isinstance(batch, (list, tuple)) or len(batch) != count:
            got = f"{len(batch)}" if isinstance(batch, (list, tuple)) else f"a {type(batch).__name__}"
            raise ReplayError(f"accumulate={count}: batches must return a list of {count} micro-batches, not {got}")
        return batch

    def _passes(self, function: Any, parts: Any, single: str, result: StepResult, *, backward: bool) -> None:
        """The forward pass of every micro-batch, each followed by its backward pass. Adds the losses to `result`."""
        count = len(parts)
        for micro in parts:
            losses = self._forward(function, micro, single, count)
            if self._observer is not None:
                self._observer("loss", losses)
            for name, loss in losses.items():
                value = loss.item()
                result.losses[name] = result.losses.get(name, 0.0) + value
                if count > 1:
                    result.last[name] = value * count
            if backward:
                total = functools.reduce(operator.add, losses.values())
                if not total.requires_grad:
                    why = "does not depend on any parameter: it has no gradient"
                    raise ReplayError(f"the loss that step(model, batch) returned {why}")
                (total if self.scaler is None else self.scaler.scale(total)).backward()
                del total

    def _closure(self, names: list[str], function: Any, parts: Any, single: str, loss: float) -> Callable[[], float]:
        """The closure for an optimizer that evaluates the loss several times. Its first call returns the known
        `loss`."""
        known = [loss]

        def closure() -> float:
            if known:
                return known.pop()
            for name in names:
                self.optimizers[name].zero_grad()
            total = 0.0
            for micro in parts:
                part: Any = functools.reduce(operator.add, self._forward(function, micro, single, len(parts)).values())
                part.backward()
                total += part.item()
            return total

        return closure

    def _forward(self, function: Any, batch: Any, single: str, count: int) -> dict[str, torch.Tensor]:
        with self._autocast():
            try:
                value = function(self.train_step.model, batch)
            except (TypeError, AttributeError) as error:
                if batch is not None or "None" not in str(error):
                    raise
                given = self.train_step.batches is not None
                what = "batches returned None" if given else "set batches=… in the TrainStep, a function of the step"
                raise ReplayError(f"the step has no batch: {what}") from error
        losses = by_name(value, single)
        for name, loss in losses.items():
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                tensor = isinstance(loss, torch.Tensor)
                what = f"a tensor of shape {tuple(loss.shape)}" if tensor else f"a {type(loss).__name__}"
                raise ReplayError(f"step(model, batch) must return a scalar loss; {name!r} is {what}")
        if not losses:
            raise ReplayError("step(model, batch) returned no loss")
        return {name: loss / count for name, loss in losses.items()} if count > 1 else losses

    def loss_of(self, micro: Any) -> torch.Tensor:
        """The loss of one micro-batch at the present weights, the sum of named ones; nothing is run backward."""
        return functools.reduce(operator.add, self._forward(self.train_step.step, micro, "loss", 1).values())

    def _autocast(self) -> Any:
        kind: str | None = self.train_step.autocast
        if self._overrides.dtype is not None:
            kind = "bf16" if self._only_autocast() else None
        return torch.autocast(self.device.type, dtype=DTYPES[kind]) if kind else nullcontext()

    def _only_autocast(self) -> bool:
        """True if the precision only changes autocast: with autocast, bf16 does not mean a model in bf16."""
        return self._overrides.dtype == "bf16" and self.train_step.autocast is not None

    def _native_optimizers(self) -> list[torch.optim.Optimizer]:
        return [o for o in self.optimizers.values() if isinstance(o, torch.optim.Optimizer)]

    def _owned(self, optimizers: list[Any]) -> dict[str, torch.nn.Parameter]:
        """The parameters of these optimizers; all parameters if these are all the optimizers."""
        every = self.named_parameters()
        if len(optimizers) == len(self.optimizers):
            return every
        mine = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
        return {name: p for name, p in every.items() if id(p) in mine}

    @contextmanager
    def _changed_groups(self, optimizer: Any) -> Iterator[None]:
        """Sets the learning rate and eps of the overrides for one optimizer step, as schedulers set their own
        values."""
        o = self._overrides
        groups = optimizer.param_groups if o.lr != 1.0 or o.eps is not None else []
        saved = [(g, {k: g[k] for k in ("lr", "eps") if k in g}) for g in groups]
        for group, values in saved:
            if "lr" in values and o.lr != 1.0:
                group["lr"] = values["lr"] * o.lr
            if "eps" in values and o.eps is not None and isinstance(values["eps"], (int, float)):
                group["eps"] = max(values["eps"], o.eps)
        try:
            yield
        finally:
            for group, values in saved:
                group.update(values)


def needs_closure(optimizer: Any) -> bool:
    """True if `optimizer.step` requires a closure, as that of LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def found_inf(scaler: Any, optimizer: Any) -> bool:
    """True if `unscale_` found a non-finite gradient, so that the scaler will skip this optimizer's step."""
    flags = scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {})
    return any(bool(flag.item()) for flag in flags.values())
