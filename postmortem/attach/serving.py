"""In the process of the program: it stops where its first optimizer is made, and forks a process for every further run.

A run of a few steps is mostly imports, data and a model: they are made once. What a run writes is there for the next
one, as the files are shared: the launcher compares the losses, and starts the command anew where they differ.
"""

from __future__ import annotations

import json
import os
import select
import threading
from typing import TYPE_CHECKING, Any

from postmortem.attach.agent import Agent
from postmortem.attach.growth import measured
from postmortem.attach.growth.runs import ORDERS, SERVING, process_file
from postmortem.attach.sandbox import descriptors
from postmortem.attach.standby import Standby
from postmortem.attach.standby.forks import end, fork

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from postmortem.attach.observer import Observer

_LOOK = 0.1  # seconds between two looks at whether the run has ended


class Serving(Agent):
    """Waits for orders as soon as an optimizer is made; in a process that was forked for one it is an `Agent`."""

    def __init__(self, session: Path, plan: dict[str, Any]) -> None:
        super().__init__(session, plan)
        self._served = False

    def in_fork(self) -> Observer:
        """A process that the program forked waits for nothing."""
        self.leave()
        return Agent(self.session, self.plan)

    def ready(self, optimizer: torch.optim.Optimizer) -> None:
        """The place where it waits."""
        if not self._served:
            self._served = True
            _serve(self.session)
        super().ready(optimizer)


def _serve(session: Path) -> None:
    """Returns in the processes that are forked for an order, and where none can be; who waits is ended by the launcher.

    An order is the number of a file of the session; 0 ends the run before and begins none.
    """
    possible = Standby.possible() and threading.active_count() == 1
    try:
        (session / SERVING).open("x").write("yes" if possible else "no")
    except FileExistsError:  # another process of the command does it
        return
    orders = os.open(session / ORDERS, os.O_RDWR | os.O_CLOEXEC) if possible else None
    running: tuple[int, int] | None = None  # its order, its process
    while orders is not None:
        if select.select([orders], [], [], _LOOK if running else None)[0]:
            number = int(os.read(orders, 4096).split()[-1])
            if running is not None:
                end(running[1])
            running = _run(session, number) if number else None
            if running is not None and not running[1]:
                return
        elif running is not None and os.waitpid(running[1], os.WNOHANG)[0]:
            process_file(session, running[0], over=True).touch()
            running = None


def _run(session: Path, number: int) -> tuple[int, int]:
    """(the order, the process that was forked for it), 0 in that one."""
    order = json.loads((session / f"{number}.json").read_text())
    process = fork()
    if process:
        path = process_file(session, number)
        path.with_suffix(".new").write_text(str(process))
        path.with_suffix(".new").rename(path)
        return number, process
    descriptors.silence()
    measured.begin(session, order)
    return number, 0
