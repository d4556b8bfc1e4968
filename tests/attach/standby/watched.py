"""Runs a training under a standby, as the agent does: python watched.py ANSWER EVERY SCRIPT [ARGUMENT …].

EVERY: a copy is taken at the end of each EVERY-th tick, and before the first; with "armed" nothing is forked: the
program runs twice, first under the flags alone, then traced in the tick that failed.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

from postmortem.attach import boundaries
from postmortem.attach.flags import Fault, Flags, Tick
from postmortem.attach.observer import Observer
from postmortem.attach.standby import Standby
from postmortem.attach.standby.armed import arm
from postmortem.attach.standby.course import Course
from postmortem.attach.standby.loaders import Record


class Watch(Flags):
    def __init__(self, answer: str, every: int) -> None:
        super().__init__(self.failed, lambda tick: None)
        self.answer, self.every, self.standby = answer, every, Standby()

    def ready(self, optimizer: Any) -> None:
        if boundaries.listener.ticks == 0 and self.every:
            self.standby.take(-1)

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        return self.standby.batch(loader, index, batch)

    def no_batch(self, loader: Any, index: int, error: Exception) -> None:
        self.standby.no_batch(loader, index, error)

    def loss(self, loss: Any) -> None:
        self.standby.loss(loss)
        super().loss(loss)

    def abandoned(self, loss: Any) -> None:
        self.standby.abandoned(loss)
        super().abandoned(loss)

    def raised(self, error: BaseException) -> None:
        super().raised(error)
        if boundaries.current() is self:
            self.failed(Fault(boundaries.listener.ticks, "raised"), self.under_way())

    def tick(self, number: int) -> None:
        super().tick(number)
        if self.every and (number + 1) % self.every == 0:
            self.standby.take(number)

    def end(self) -> None:
        super().end()
        self.standby.retire()

    def failed(self, fault: Fault, tick: Tick) -> None:
        boundaries.exchange(Observer())
        found = self.standby.investigate(fault)
        with open(self.answer, "w") as file:
            order = {"losses": [value.hex() for value in tick.losses], "course": [], "fixes": True}
            json.dump({"tick": fault.tick, "kind": fault.kind, "found": found, **order}, file)
        os._exit(3)


class Armed(Observer):
    """The second run: the tick that the first one told is traced."""

    def __init__(self, answer: str, first: dict[str, Any]) -> None:
        self.answer, self.first, self.record, self.course = answer, first, Record(), Course()
        self.order = {**first, "session": os.path.dirname(answer), "last": True}

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        self.record.took(loader, index, batch)
        return batch

    def after_update(self, optimizer: Any, skipped: bool) -> None:
        self.course.passed(optimizer)

    def ready(self, optimizer: Any) -> None:
        if boundaries.listener.ticks == self.first["tick"] == 0:
            arm(self.record, self.course, self.order, self.told)

    def tick(self, number: int) -> None:
        if number + 1 == self.first["tick"]:
            arm(self.record, self.course, self.order, self.told)

    def told(self, found: dict[str, Any]) -> None:
        with open(self.answer, "w") as file:
            json.dump({**self.first, "found": found}, file)


if __name__ == "__main__":
    warnings.simplefilter("error", FutureWarning)
    told = Path(sys.argv[1])
    if sys.argv[2] == "armed" and told.exists():
        boundaries.install(Armed(sys.argv[1], json.loads(told.read_text())))
    else:
        boundaries.install(Watch(sys.argv[1], 0 if sys.argv[2] == "armed" else int(sys.argv[2])))
    sys.argv = sys.argv[3:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
