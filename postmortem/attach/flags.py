"""The cheapest check of each tick: whether losses and parameters are finite. Also returns the losses.

Costs one sum per parameter and buffer, no hooks and no dispatch mode. On a GPU the sums are read later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from postmortem.attach.boundaries.current import before_scaling, listener
from postmortem.attach.boundaries.statistics import Statistics
from postmortem.attach.measure.budget import Budget, Laps
from postmortem.attach.measure.later import Later
from postmortem.attach.measure.reductions import all_finite, plain, totals
from postmortem.attach.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Kind = Literal[
    "loss", "skipped-loss", "gradient", "parameter", "buffer", "raised", "requested", "jump", "gradient-jump"
]


@dataclass(frozen=True, slots=True)
class Fault:
    """What the flags saw: the tick, counted from 0, and where the first non-finite value showed.

    kind: "loss" (a backward pass begins at it), "skipped-loss" (the program read it and left out the backward pass),
    "gradient" (of a step that the program left out), "parameter" (after an update), "buffer" (of a model that is
    trained, after its tick: running statistics), "raised" (the program ends with an exception; whether a non-finite
    value was the reason is not known), "requested" (no fault: a capture of the tick was asked for), "jump" (the loss is
    finite, and above what the plan allows), "gradient-jump" (the same of the gradient norm after a backward pass).
    index: of the backward pass in the tick. An earlier tick may have made parameters non-finite: a copy finds out.
    """

    tick: int
    kind: Kind
    index: int = 0


@dataclass(slots=True)
class Tick:
    """What one tick did. losses: those that a backward pass began at, as they were before a scaler multiplied them."""

    number: int
    losses: list[float]
    skipped: bool = False


class Flags(Observer):
    """Tells each fault to `fault`, with the tick as far as it got, and each tick that ends to `ended`.

    share: of the time of the ticks, which looking at parameters and buffers may take. deferred: losses are read late
    also on a CPU; None: nowhere. What lies on a device is then read ticks later, without waiting for the device.
    """

    def __init__(
        self,
        fault: Callable[[Fault, Tick], None],
        ended: Callable[[Tick], None],
        *,
        share: float = 1.0,
        deferred: bool | None = None,
    ) -> None:
        self._fault, self._ended = fault, ended
        self._losses: list[float] = []
        self._waiting: list[torch.Tensor] = []
        self._skipped = False
        self._optimizer: Any = None
        self._unchecked: dict[int, tuple[Tick, torch.Tensor]] = {}
        """Of a parameter that was updated and not looked at since: the last tick that did so, and itself."""
        self.statistics = Statistics()
        self.later = Later(deferred=bool(deferred))
        self._at_once = deferred is None
        self.budget = Budget(share)
        self.laps = Laps()

    def ready(self, optimizer: torch.optim.Optimizer) -> None:
        """Its model is known from now on."""
        self.statistics.find()

    def loss(self, loss: torch.Tensor) -> None:
        """Reads the loss; a non-finite one is a fault at once, before its gradients reach other ranks."""
        number = scalar(before_scaling(loss))
        if not self._at_once and self.later.defers(number):
            self._waiting.append(number)
            self.later.look()
            return
        value = float(number.item())
        self._losses.append(value)
        if not math.isfinite(value) and self._read_late():
            self._found("loss")

    def abandoned(self, loss: torch.Tensor) -> None:
        """A step that the program guards."""
        if self._read_late():
            self._losses.append(float(scalar(loss).item()))
            self._found("skipped-loss")

    def dropping(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients that the program does not use: non-finite ones, unless a scaler made them large."""
        if listener.unscaled:
            return
        grads = plain(gradients([optimizer]))
        if not self._at_once and any(map(self.later.defers, grads)):
            tick = self.under_way()
            self.later.send(totals(grads), lambda values: self._dropped(tick, values))
        elif not all_finite(grads):
            self._found("gradient")

    def _dropped(self, tick: Tick, values: list[float]) -> None:
        if not all(map(math.isfinite, values)):
            self._tell(Fault(tick.number, "gradient"), tick)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """Remembers whose parameters have changed."""
        self._optimizer, self._skipped = optimizer, skipped

    def tick(self, number: int) -> None:
        """Looks at the parameters that have changed, and at running statistics."""
        tick = Tick(number, self._losses, self._skipped)
        self._losses = []
        optimizer = self._optimizer
        updated = [] if self._skipped else list(_parameters(optimizer))  # now: gradients may be set to None later
        self.budget.earn(self.laps.lap()[0])
        # of gradients that come without a backward pass (torch.func) nothing else is seen
        due = self.budget.due() or not (tick.losses or self._waiting or self._skipped)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            with self.budget.spend():
                buffers = self.statistics.changed() if due else []
                seen = [waiting, totals(updated) if due else [], totals(buffers)]
                self.later.send(
                    [value for part in seen for value in part],
                    lambda values: self._arrived(tick, updated, buffers, values, [len(part) for part in seen]),
                )
                self.later.look()
            return
        self._ended(tick)
        self._unchecked.update((id(p), (tick, p)) for p in updated)
        if due:
            with self.budget.spend():
                self.check(tick)

    def _arrived(
        self,
        tick: Tick,
        updated: list[torch.Tensor],
        buffers: list[torch.Tensor],
        values: list[float],
        sizes: Sequence[int],
    ) -> None:
        losses, rest = sizes[0], sizes[0] + sizes[1]
        tick.losses = values[:losses]
        bad = [i for i, value in enumerate(tick.losses) if not math.isfinite(value)]
        if bad:
            self._tell(Fault(tick.number, "loss", bad[0]), tick)
            return
        self._ended(tick)
        if not all(map(math.isfinite, values[losses:rest])) and not all_finite(updated):
            self._tell(Fault(tick.number, "parameter"), tick)
        elif not all(map(math.isfinite, values[rest:])) and self.statistics.broken(buffers):
            self._tell(Fault(tick.number, "buffer"), tick)

    def _read_late(self) -> bool:
        """Reads what is on its way from a device. False if that was a fault."""
        before = listener.observer
        self.later.drain()
        return listener.observer is before

    def check(self, ended: Tick | None = None) -> bool:
        """Looks at what was not looked at yet. False if that was a fault.

        ended: the tick that ends now, where buffers are to be looked at as well: a forward pass that has begun since
        may have changed them.
        """
        before = listener.observer
        if self._read_late() and not all_finite(p for _, p in self._unchecked.values()):
            tick = min((tick for tick, p in self._unchecked.values() if not all_finite([p])), key=_number)
            self._tell(Fault(tick.number, "parameter"), tick)
            return False
        self._unchecked.clear()
        if ended is not None and listener.observer is before and self.statistics.broken(self.statistics.changed()):
            self._tell(Fault(ended.number, "buffer"), ended)
        return listener.observer is before

    def raised(self, error: BaseException) -> None:
        """An exception: of a check for finite gradients, or of something else."""
        self._last_look()

    def end(self) -> None:
        """The program may have left its loop because of the gradients."""
        whole = listener.ticks and not listener.backwards
        self._last_look(Tick(listener.ticks - 1, []) if whole else None)

    def _last_look(self, ended: Tick | None = None) -> None:
        if not self.check(ended):
            return
        if listener.backwards and not listener.unscaled and not all_finite(gradients(listener.optimizers)):
            self._found("gradient")

    def under_way(self) -> Tick:
        """The tick that has not ended."""
        return Tick(listener.ticks, list(self._losses))

    def _found(self, kind: Kind) -> None:
        self._tell(Fault(listener.ticks, kind, max(0, len(self._losses) - 1)), self.under_way())

    def _tell(self, fault: Fault, tick: Tick) -> None:
        self._unchecked.clear()
        self.later.forget()
        self._fault(fault, tick)


def _number(tick: Tick) -> int:
    return tick.number


def scalar(loss: torch.Tensor) -> torch.Tensor:
    """A loss as one number, whatever its shape."""
    with torch.no_grad():
        value = loss.detach()
        value = value.abs() if value.is_complex() else value
        return (value if value.numel() == 1 else value.sum()).double()


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    return (p for group in getattr(optimizer, "param_groups", ()) for p in group["params"] if p.grad is not None)


def gradients(optimizers: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The gradients that these optimizers would use."""
    return (
        p.grad
        for o in optimizers
        for group in getattr(o, "param_groups", ())
        for p in group["params"]
        if p.grad is not None
    )


def gradient_norm() -> float:
    """The norm of all gradients there are, as they are without a scaler; NaN where that cannot be told."""
    scales = [float(loss / scaled) for scaled, loss in listener.unscaled.values() if loss.numel() == 1]
    if len(scales) < len(listener.unscaled):
        return math.nan
    squares = [float(g.double().square().sum()) for g in plain(gradients(listener.optimizers | listener.stepped))]
    return math.sqrt(math.fsum(squares)) * (scales[-1] if scales else 1.0)
