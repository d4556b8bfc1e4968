"""Learning rate schedulers: their arguments, and where they are stepped."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler

from postmortem.silent.observe.identities import Numbers
from postmortem.silent.observe.places import place, stack
from postmortem.silent.observe.watcher import Watcher
from postmortem.silent.observe.watchers import watcher
from postmortem.silent.weight_facts import Scheduled, SchedulerMade

if TYPE_CHECKING:
    from postmortem.silent.facts import Stack
    from postmortem.silent.observe.recorder import Recorder


@watcher
class Schedulers(Watcher):
    """SchedulerMade, Scheduled."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._numbers = Numbers()
        self._told: set[int] = set()
        self._made: dict[int, tuple[weakref.ref[Any], Stack]] = {}
        base = lr_scheduler.LRScheduler
        self.wrap(base, "__init__", self._new, always=True)
        kinds = [k for k in vars(lr_scheduler).values() if isinstance(k, type) and issubclass(k, base)]
        for kind in dict.fromkeys(kinds):
            if "step" in vars(kind):
                self.wrap(kind, "step", self._stepped)
        self.wrap(lr_scheduler.ReduceLROnPlateau, "__init__", self._new, always=True)

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if args:
            number, _ = self._numbers.of(args[0])
            self._made.setdefault(number, (weakref.ref(args[0]), stack()))

    def before_step(self, optimizer: Any) -> None:
        """Schedulers set their options after the constructor of the base class: they are told of at the next step."""
        for number, (found, made) in list(self._made.items()):
            scheduler = found()
            if number not in self._told and scheduler is not None:
                self._told.add(number)
                self.recorder.add(self._described(number, scheduler, made))

    def _described(self, number: int, scheduler: Any, made: Stack) -> SchedulerMade:
        optimizer, _ = self.recorder.optimizers.of(scheduler.optimizer)
        own = {k: v for k, v in vars(scheduler).items() if not k.startswith("_")}
        options = {k: v for k, v in own.items() if isinstance(v, (bool, int, float))}
        options |= {k: sorted(int(m) for m in v) for k, v in own.items() if k == "milestones"}
        return SchedulerMade(number, type(scheduler).__name__, optimizer, options, made)

    def _stepped(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        number = self._numbers.known(args[0]) if args else None
        if number is not None and number in self._told:
            rates = tuple(float(group.get("lr", 0.0)) for group in args[0].optimizer.param_groups)
            self.recorder.add(Scheduled(number, self.recorder.steps, rates, place()))
