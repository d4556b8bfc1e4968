"""Continues a program from a capture: after its first step it gets the captured state and batches.

From there on everything is as in a rerun: the step fails again, and a copy of the process repeats it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

from postmortem.attach import boundaries
from postmortem.attach.agent import Agent
from postmortem.attach.boundaries.current import listener
from postmortem.attach.capture.folder import Capture
from postmortem.attach.capture.origin import changes
from postmortem.attach.capture.state import restore, set_randomness, set_settings
from postmortem.attach.captures import begin_after
from postmortem.attach.observer import Observer
from postmortem.attach.report import rank
from postmortem.attach.standby.program import Program
from postmortem.core.errors import ReplayError
from postmortem.replay.step.batches import tensors_in

if TYPE_CHECKING:
    from postmortem.attach.capture.folder import Part
    from postmortem.attach.standby.loaders import Record


class Recall(Agent):
    """The agent of a program that goes on from the capture ``plan["recall"]``."""

    def __init__(self, session: Path, plan: dict[str, Any]) -> None:
        super().__init__(session, plan)
        self._path = plan["recall"]
        self._after: int | None = None

    def tick(self, number: int) -> None:
        """At the end of the first tick that is in the same place of the program's loop, the state is put in."""
        if self._after is None:
            self._after = self._starts()
        super().tick(number)
        if number == self._after and boundaries.current() is self:
            try:
                self._go_on(number)
            except ReplayError as error:
                self.report.line("recalled", error=str(error))
                boundaries.exchange(Observer())
                return
            self._sleep(number)

    def _starts(self) -> int:
        head = Capture(Path(self._path)).head
        return begin_after(head["tick"], head["history"]) if head["rank"] in (None, rank()) else -1

    def _go_on(self, number: int) -> None:
        capture = Capture(Path(self._path))
        program = Program.found(listener.optimizers | listener.stepped, sys._getframe(1))
        batches = capture.part("batches")
        state = capture.part("state").value()
        unfit, lacks = restore(state, program)
        if unfit:
            parts = f"{', '.join(unfit[:4])}{' …' if len(unfit) > 4 else ''}"
            raise ReplayError(f"the capture does not fit this program: {parts}")
        _Feed(batches, self.standby.record).begin()
        _keep_settings(batches.value(batches.of("settings")), program)
        self.standby.course.clear()  # those of its first steps are not those before the captured one
        self.standby.course += [(number, loss) for loss in capture.head.get("course", [])]
        self.report.line(
            "recalled",
            tick=number + 1,
            losses=capture.head["losses"],
            cause=capture.head["kind"],
            passes=capture.head["passes"],
            lacks=lacks,
            unstored=capture.head["unstored"],
            changes=changes(capture.head),
        )
        set_randomness(state["rng"])


class _Feed:
    """Gives the batches of the capture in the place of those of the loaders, with the random state after each."""

    def __init__(self, part: Part, record: Record) -> None:
        self._part, self._record = part, record
        self._told = {told["draw"]: told["batch"] for told in part.items(part.of("batches"))}
        self._rng = part.value(part.of("rng"))
        self._given = self._drawn = 0

    def begin(self) -> None:
        """From now on; what the program has drawn ahead is overwritten."""
        for place, (_, held) in enumerate(self._record.recent, -len(self._record.recent)):
            if place in self._told:
                _overwrite(held, self._part.value(self._told[place], held))
        for kind in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
            self._wrap(kind)
        took = self._record.took

        def taken(iterator: Any, index: int, batch: Any) -> Any:
            key = took(iterator, index, batch)
            if self._drawn < len(self._rng):
                set_randomness(self._rng[self._drawn])
            self._drawn += 1
            return key

        self._record.took = taken  # type: ignore[method-assign]

    def _wrap(self, kind: Any) -> None:
        drawing = kind._next_data

        def _next_data(iterator: Any) -> Any:
            own = drawing(iterator)
            place, self._given = self._given, self._given + 1
            told = self._told.get(place)
            return own if told is None else self._part.value(told, own)

        kind._next_data = _next_data


def _overwrite(held: Any, new: Any) -> None:
    old, values = tensors_in(held), tensors_in(new)
    if len(old) != len(values):
        raise ReplayError("the batch that the program has drawn ahead has another structure than the captured one")
    for t, value in zip(old, values, strict=True):
        t.data = value.data


def _keep_settings(kept: Any, program: Program) -> None:
    """The update of the step has the learning rate that it had, also where the program computes it from a counter."""
    at = listener.ticks
    known = {tuple(names): values for names, values in kept}
    own = {id(o): known.get(tuple(program.parameters_of(o))) for o in program.optimizers}

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        values = own.get(id(optimizer))
        if values is not None and listener.ticks == at:
            set_settings(optimizer, values)

    handle = optimizers.register_optimizer_step_pre_hook(begins)
    # before that of the boundaries: an attempt with another learning rate sets it there
    hooks: Any = optimizers._global_optimizer_pre_hooks
    hooks.move_to_end(handle.id, last=False)
