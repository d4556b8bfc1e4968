"""The observer of a second run of a command, whose processes cannot be forked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.attach.boundaries.current import listener
from postmortem.attach.observer import Observer
from postmortem.attach.report import Report, tell
from postmortem.attach.standby.course import Course
from postmortem.attach.standby.loaders import Record

if TYPE_CHECKING:
    from pathlib import Path

    import torch


class Armed(Observer):
    """Traces the tick that is known to fail, in a process that cannot be forked; it ends with the answer."""

    def __init__(self, session: Path, order: dict[str, Any]) -> None:
        self.session, self.order, self.fault = session, order, order["tick"]
        self.report, self.record, self.course = Report(session), Record(), Course()

    def in_fork(self) -> Observer:
        """A new one, which counts from its own start."""
        return Armed(self.session, self.order)

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """Recorded."""
        self.record.took(loader, index, batch)
        return batch

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """Where the program is."""
        self.course.passed(optimizer)

    def ready(self, optimizer: torch.optim.Optimizer) -> None:
        """The first tick begins."""
        if listener.ticks == self.fault == 0:
            self._arm()

    def tick(self, number: int) -> None:
        """The next one begins."""
        if number + 1 == self.fault:
            self._arm()

    def _arm(self) -> None:
        from postmortem.attach.standby.armed import arm

        order = {**self.order, "session": str(self.session)}
        arm(self.record, self.course, order, lambda answer: tell(self.report, answer))
