"""What a tick began with and was given, so that the process can do it again: its state, and what its loaders gave."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach.capture.state import held, randomness, restore, set_randomness, settings
from postmortem.replay.step.batches import tensor_map
from postmortem.replay.step.state import plain_attributes

if TYPE_CHECKING:
    from postmortem.attach.standby.loaders import Record
    from postmortem.attach.standby.plan import Key
    from postmortem.attach.standby.program import Program


class Given:
    """What the loaders gave in the tick at fault and just before, and what they give in its place from then on. known:
    the same, as an earlier run of the command kept it.

    before: batches that had been drawn when the tick began; drawn: those drawn in it, each with the state of the random
    generators after it and its data set. Their values are kept as they were. ahead: the newest batches that the program
    holds.
    """

    def __init__(self, record: Record, known: dict[str, Any] | None) -> None:
        self._record = record
        self.before: list[tuple[Key, Any]] = [(key, clone(batch)) for key, batch in record.recent]
        self.drawn: list[tuple[Key, Any, Any, Any]] = []
        self.settings: dict[tuple[str, ...], Any] = {}
        """Names of an optimizer's parameters -> its settings in the update of the tick, which the program may
        compute."""
        self.ahead: deque[Any] = deque((batch for _, batch in record.recent), maxlen=record.recent.maxlen)
        self.first = known is None
        self._place = 0
        if known is not None:
            self.before, self.settings = known["before"], known["settings"]
            self.drawn = [(*drawn, None) for drawn in known["drawn"]]

    def take(self, loader: Any, index: int, batch: Any) -> Key:
        """A batch of the tick at fault itself."""
        key = self._record.took(loader, index, batch)
        self.drawn.append((key, clone(batch), randomness(), loader._dataset))
        return key

    def keep(self) -> None:
        """The tick at fault has ended: its batches are known by the values that they had."""
        self.first = False
        known = [*self.before, *((key, batch) for key, batch, *_ in self.drawn)]
        self._record.recent = deque(known, maxlen=len(known) + 1)

    def portable(self) -> dict[str, Any]:
        """For another run of the command."""
        drawn = [(key, batch, rng) for key, batch, rng, _ in self.drawn]
        return {"before": self.before, "drawn": drawn, "settings": self.settings}

    def update(self, program: Program, optimizer: torch.optim.Optimizer) -> None:
        """An update of the tick at fault."""
        self.settings.setdefault(tuple(program.parameters_of(optimizer)), settings(optimizer))

    def settings_of(self, program: Program, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """What it had in that update; empty where there was none."""
        return list(self.settings.get(tuple(program.parameters_of(optimizer)), ()))

    def rewind(self) -> None:
        """The tick begins again."""
        self._place = 0

    def next(self, loader: Any) -> tuple[Key, Any, Any] | None:
        """What comes now; None where the tick at fault had no further batch, or one of other data."""
        place, self._place = self._place, self._place + 1
        key, batch, rng, data = self.drawn[place] if place < len(self.drawn) else (None, None, None, None)
        return (key, batch, rng) if key is not None and (data is None or data is loader._dataset) else None

    def held(self) -> list[tuple[Key, Any]]:
        """The batches that the program holds at the beginning of the tick, each under the key of the one that it held
        at that place when the tick at fault began."""
        places = list(zip(reversed(self.before), reversed(self.ahead), strict=False))
        return [(key, batch) for (key, _), batch in reversed(places)]


class State:
    """The state of the program before the tick, also where an attempt has cast it to another type."""

    def __init__(self, program: Program) -> None:
        self._program = program
        state = held(program)
        self._rng = state.pop("rng")
        self._state = clone(state)
        self._memory = [(t, t.data) for t in (program.parameters | program.buffers).values()]
        self._grads = [(p, p.grad, clone(p.grad)) for p in program.parameters.values()]
        modules = [m for model in program.models.values() for m in model.modules()]
        self._held = [(m, dict(m._buffers), clone(plain_attributes(m))) for m in modules]
        self._scalers = [(s, _of_scaler(s)) for s in program.scalers]
        self._optimizers = [(o, vars(o).get("_step_supports_amp_scaling")) for o in program.optimizers]

    def put_back(self) -> None:
        """Everything has the values that it had."""
        with torch.no_grad():
            for module, buffers, attributes in self._held:
                module._buffers.update(buffers)
                vars(module).update(clone(attributes))
            for t, memory in self._memory:
                t.data = memory
            for p, grad, values in self._grads:
                p.grad = grad
                if grad is not None:
                    grad.copy_(values)
        for optimizer, scaling in self._optimizers:
            if scaling is not None:
                vars(optimizer)["_step_supports_amp_scaling"] = scaling
        restore(clone(self._state), self._program)
        for scaler, state in self._scalers:
            scaler._per_optimizer_states.clear()
            scaler._per_optimizer_states.update(clone(state))
        set_randomness(self._rng)


def _of_scaler(scaler: Any) -> dict[int, dict[str, Any]]:
    """What it has seen in the tick before, and uses in its `update` after that."""
    return {
        key: {**state, "found_inf_per_device": dict(clone(dict(state["found_inf_per_device"])))}
        for key, state in scaler._per_optimizer_states.items()
    }


def clone(value: Any) -> Any:
    """The same with tensors of its own."""
    with torch.no_grad():
        return tensor_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad), value)
