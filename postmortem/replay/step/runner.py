"""Runs one training step as the contract of `TrainStep` says, from a state that can be put back.

The runner only runs and looks; who asks for which step, and what a result means, is up to its callers.
A step that is run again uses the batch that was kept and the random state as it was after that batch was drawn::

    runner = StepRunner(train_step)
    batch = runner.draw(step)       # before_step(step), then the batch
    before = runner.snapshot()      # the state before the step, with the random state after the draw
    result = runner.run(batch, step)
    runner.restore(before)          # and again, bit for bit
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from postmortem.core.errors import PostmortemError
from postmortem.replay.step.batches import clone_tensor, tensor_map
from postmortem.replay.step.precision import DTYPES, CastsFollow, NoiseStays, Precision, cast, cast_state
from postmortem.replay.step.python_state import Outside
from postmortem.replay.step.state import Rng, State, drawing
from postmortem.replay.trace.tensors import nonfinite_names, total_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.replay.model import TrainStep


class ReplayError(PostmortemError):
    """A replay that could not be done; the message says what was in the way and what to do."""


class Exited(Exception):
    """The user's code called ``sys.exit``, as scripts do that stop at a NaN, or raised what no `except Exception` catches."""


@contextmanager
def _exit_is_an_error() -> Iterator[None]:
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as end:  # noqa: BLE001 - the user's code may raise anything
        said = f"sys.exit({end.code!r})" if isinstance(end, SystemExit) else repr(end)
        raise Exited(said).with_traceback(end.__traceback__) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What to change in a step, to see whether it cures it. The default changes nothing.

    clip: max_norm instead of the step's own. lr: factor on every learning rate. dtype: the whole step in that
    precision (autocast off; with autocast, bf16 means autocast to bf16); casts_follow: casts to a narrower one that
    stand in the code, too. loss_scale: the scaler's scale.
    eps: the optimizers' eps, where theirs is smaller. batch: applied to the batch (to one micro-batch list under
    accumulation). fresh_optimizer: forget the optimizers' state.
    """

    clip: float | None = None
    lr: float = 1.0
    dtype: Precision | None = None
    casts_follow: bool = False
    loss_scale: float | None = None
    eps: float | None = None
    batch: Callable[[Any], Any] | None = None
    fresh_optimizer: bool = False


NOTHING = Overrides()


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What one step did.

    `losses` by name ("loss" where the step returns one number), as the step's loss is defined under accumulation;
    `loss` is their sum, `last` those of the last of several micro-batches alone. `first_nonfinite` is where the step went
    wrong first, in the order loss, grad, param; None where all is finite. `bad_grads` (after unscaling, before clipping) and
    `bad_params` (after the step) are names. `grad_norm` is the total norm before clipping. `skipped`: the scaler skipped the
    optimizer's step; `scale` is the loss scale that the step used (1.0 without a scaler). `lr` is the first group's.
    """

    step: int
    loss: float
    losses: dict[str, float]
    first_nonfinite: Literal["loss", "grad", "param"] | None = None
    bad_grads: list[str] = field(default_factory=list)
    bad_params: list[str] = field(default_factory=list)
    grad_norm: float = math.nan
    skipped: bool = False
    scale: float = 1.0
    lr: float = math.nan
    last: dict[str, float] = field(default_factory=dict)


def plain_name(*parts: str) -> str:
    """The qualified name of these parts, as it is without torch.compile."""
    return ".".join(p for part in parts for p in part.split(".") if p and p != "_orig_mod")


def by_name(value: Any, single: str) -> dict[str, Any]:
    """A dict as it is, anything else under the name `single`."""
    return dict(value) if isinstance(value, dict) else {single: value}


class StepRunner:
    """Runs steps of `train_step`. `models`, `optimizers` by name, `schedulers` and `scaler` as they are used."""

    def __init__(self, train_step: TrainStep) -> None:
        self.train_step = train_step
        self.models: dict[str, torch.nn.Module] = by_name(train_step.model, "")
        self.optimizers: dict[str, Any] = by_name(train_step.optimizer, "")
        scheduler = train_step.scheduler
        if isinstance(scheduler, dict):
            scheduler = list(scheduler.values())
        self.schedulers = list(scheduler) if isinstance(scheduler, (list, tuple)) else [] if scheduler is None else [scheduler]
        first = next((p for m in self.models.values() for p in m.parameters()), None)
        self.device: torch.device = torch.device("cpu") if first is None else first.device
        self.scaler = self._make_scaler()
        self.observe: Callable[[Literal["loss", "grad"], dict[str, torch.Tensor]], None] | None = None
        """Called with the named losses after each forward pass and with the gradients before they are clipped."""
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

    # ---- state

    def snapshot(self, into: State | None = None) -> State:
        """The state now; with `into`, taken into that state's memory."""
        if into is not None:
            into.refresh()
            return into
        return State([*self.models.values(), *self.outside.modules.values()], self.optimizers.values(), self.schedulers, self.scaler, self.outside)

    def restore(self, state: State) -> None:
        """Puts `state` back in place, the random generators last."""
        state.restore()

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter once; with several models its name begins with the model's."""
        return {plain_name(key, name): p for key, model in self.models.items() for name, p in model.named_parameters()}

    def _finite_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that are saved with the models and were finite before the first step: masks may hold -inf, statistics may not
        turn NaN."""
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

    # ---- batches

    def draw(self, step: int) -> Any:
        """`before_step(step)`, then the batch of `step`, asked for once and kept with the random state after it.

        Asked again, the kept batch is returned and that random state is set. ReplayError where the batches end.
        """
        if self.train_step.before_step is not None:
            with _exit_is_an_error():
                self.train_step.before_step(step)
        if step in self._kept:
            batch, rng = self._kept[step]
            rng.restore()
            return batch
        with _exit_is_an_error(), drawing(self.outside):
            batch = self._ask(step)
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
        """The kept batch of `step`, for a rerun from a state that was taken after its draw: `before_step` is in that state."""
        return self._kept[step][0]

    # ---- one step

    @contextmanager
    def under(self, overrides: Overrides) -> Iterator[None]:
        """Steps inside run under `overrides`, all of them. Restore a snapshot afterwards: dtypes and state are changed."""
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

    def run(self, batch: Any, step: int, *, overrides: Overrides | None = None, until: Literal["loss", "grad", "step"] = "step") -> StepResult:
        """One whole step from the state as it is; afterwards the state is the one after the step.

        A step is run to its end also where its loss is not finite, as the training did. `until` ends it after the
        forward ("loss") or the backward pass ("grad"). The batch is copied first: steps may write into theirs.
        """
        if overrides is not None and overrides != NOTHING:
            with self.under(overrides):
                return self.run(batch, step, until=until)
        batch = tensor_map(clone_tensor, batch)
        if self._overrides.batch is not None:
            batch = self._overrides.batch(batch)
        if self._overrides.dtype is not None and not self._only_autocast():
            batch = tensor_map(functools.partial(cast, dtype=DTYPES[self._overrides.dtype]), batch)
        if self._buffers is None:
            self._finite_buffers()
        result = StepResult(step=step, loss=math.nan, losses={})
        result.scale = self.scaler.get_scale() if self.scaler is not None else 1.0
        result.lr = next((float(g["lr"]) for o in self._native_optimizers() for g in o.param_groups if "lr" in g), math.nan)
        norms: list[float] = []
        casts = CastsFollow(DTYPES[self._overrides.dtype]) if self._overrides.casts_follow and self._overrides.dtype else nullcontext()
        noise: Any = NoiseStays() if self._overrides.dtype is not None and not self._only_autocast() else nullcontext()
        with _exit_is_an_error(), torch.enable_grad(), casts, noise:
            for names, function in self._sub_steps():
                norm = self._sub_step(names, function, batch, result, until)
                if norm is not None:
                    norms.append(norm)
        result.loss = functools.reduce(operator.add, result.losses.values())
        result.grad_norm = math.sqrt(sum(n * n for n in norms)) if norms else math.nan
        if until == "step":
            if self.scaler is not None:
                self.scaler.update()
            for scheduler in self.schedulers:
                takes_metric = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                scheduler.step(result.loss) if takes_metric else scheduler.step()
            result.bad_params = nonfinite_names(self.named_parameters() | self._finite_buffers())
        result.first_nonfinite = (
            "loss" if not all(map(math.isfinite, result.losses.values())) else "grad" if result.bad_grads else "param" if result.bad_params else None
        )
        return result

    def _sub_steps(self) -> list[tuple[list[str], Any]]:
        step = self.train_step.step
        if isinstance(step, dict):
            return [([name], function) for name, function in step.items()]
        return [(list(self.optimizers), step)]

    def _sub_step(self, names: list[str], function: Any, batch: Any, result: StepResult, until: str) -> float | None:
        """zero_grad, forward, backward, unscale, clip, optimizer step of the optimizers `names`; -> their gradient norm."""
        optimizers = [self.optimizers[n] for n in names]
        for optimizer in optimizers:
            optimizer.zero_grad()
        count = self.train_step.accumulate
        if count > 1 and (not isinstance(batch, (list, tuple)) or len(batch) != count):
            got = f"{len(batch)}" if isinstance(batch, (list, tuple)) else f"a {type(batch).__name__}"
            raise ReplayError(f"accumulate={count}: batches must give a list of {count} micro-batches, not {got}")
        single = names[0] if isinstance(self.train_step.step, dict) else "loss"
        parts = batch if count > 1 else [batch]
        for micro in parts:
            losses = self._forward(function, micro, single, count)
            if self.observe is not None:
                self.observe("loss", losses)
            for name, loss in losses.items():
                value = loss.item()
                result.losses[name] = result.losses.get(name, 0.0) + value
                if count > 1:
                    result.last[name] = value * count
            if until != "loss":
                total = functools.reduce(operator.add, losses.values())
                if not total.requires_grad:
                    raise ReplayError("the loss that step(model, batch) returned depends on no parameter: it has no gradient")
                (total if self.scaler is None else self.scaler.scale(total)).backward()
                del total
        if until == "loss":
            return None
        if self.scaler is not None:
            for optimizer in optimizers:
                self.scaler.unscale_(optimizer)
        owned = self._owned(optimizers)
        gradients = {name: p.grad for name, p in owned.items() if p.grad is not None}
        if self.observe is not None:
            self.observe("grad", gradients)
        norm = total_norm(gradients)
        if not math.isfinite(norm):
            result.bad_grads += nonfinite_names(gradients)
        clip = self._overrides.clip if self._overrides.clip is not None else self.train_step.clip
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(owned.values()), clip)
        if until == "step":
            for optimizer in optimizers:
                with self._changed_groups(optimizer):
                    if self.scaler is None:
                        again = (self._again(names, function, parts, single, sum(result.losses.values())),) if _asks_again(optimizer) else ()
                        optimizer.step(*again)
                    else:
                        result.skipped |= found_inf(self.scaler, optimizer)
                        self.scaler.step(optimizer)
        return norm

    def _again(self, names: list[str], function: Any, parts: Any, single: str, loss: float) -> Callable[[], float]:
        """The closure of an optimizer that evaluates the loss several times; its first call gives what was evaluated already."""
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
                what = "batches gave None" if self.train_step.batches is not None else "give TrainStep batches=…, a function of the step"
                raise ReplayError(f"the step has no batch: {what}") from error
        losses = by_name(value, single)
        for name, loss in losses.items():
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
                raise ReplayError(f"step(model, batch) must return a scalar loss; {name!r} is {what}")
        if not losses:
            raise ReplayError("step(model, batch) returned no loss")
        return {name: loss / count for name, loss in losses.items()} if count > 1 else losses

    def _autocast(self) -> Any:
        kind: str | None = self.train_step.autocast
        if self._overrides.dtype is not None:
            kind = "bf16" if self._only_autocast() else None
        return torch.autocast(self.device.type, dtype=DTYPES[kind]) if kind else nullcontext()

    def _only_autocast(self) -> bool:
        """bf16 in a step with autocast is autocast to bf16, not a model in bf16."""
        return self._overrides.dtype == "bf16" and self.train_step.autocast is not None

    def _native_optimizers(self) -> list[torch.optim.Optimizer]:
        return [o for o in self.optimizers.values() if isinstance(o, torch.optim.Optimizer)]

    def _owned(self, optimizers: list[Any]) -> dict[str, torch.nn.Parameter]:
        """The parameters that these optimizers step; all of them where there is one optimizer."""
        every = self.named_parameters()
        if len(optimizers) == len(self.optimizers):
            return every
        mine = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
        return {name: p for name, p in every.items() if id(p) in mine}

    @contextmanager
    def _changed_groups(self, optimizer: Any) -> Iterator[None]:
        """The learning rate and eps of the overrides, for the length of one optimizer step (schedulers set their own)."""
        o = self._overrides
        saved = [(g, {k: g[k] for k in ("lr", "eps") if k in g}) for g in optimizer.param_groups] if o.lr != 1.0 or o.eps is not None else []
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


def _asks_again(optimizer: Any) -> bool:
    """Whether the optimizer's step cannot do without a closure, as LBFGS's."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def found_inf(scaler: Any, optimizer: Any) -> bool:
    """Whether `unscale_` met a non-finite gradient, so that the scaler will skip this optimizer's step."""
    flags = scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {})
    return any(bool(flag.item()) for flag in flags.values())
