"""The launcher's side of further runs: of one process that forks the others, or of the command started anew."""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from postmortem.attach import launch
from postmortem.attach.answers import Answers
from postmortem.attach.growth.course import seen
from postmortem.attach.growth.deaths import AFTER, AROUND, death_in, looked_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from postmortem.attach.answers import Process
    from postmortem.attach.growth.course import Seen
    from postmortem.attach.steps import Mapping
    from postmortem.silent.faults.dead_relu import Death

    Start = Callable[[dict[str, Any], Path], launch.Launched]

ORDERS, SERVING = "orders", "serving"
"""Files of the session: the pipe by which a serving process is asked, and whether there is one ("yes", "no")."""
_SECONDS = 900.0
"""For all further runs together."""
_SILENT = 60.0
"""Seconds without anything new of a forked run after which it is given up: it may wait for what was not forked."""
_PLAN = {"mode": "replay", "fix": False, "on_fault": "stop", "fork": False}


def process_file(session: Path, number: int, *, over: bool = False) -> Path:
    """The file with the process of an order; the one that is there once that has ended."""
    return session / f"{number}.{'over' if over else 'process'}"


class Runs:
    """Further runs of the command. They count only where their losses before the change are those of the first."""

    def __init__(self, process: Process, mapping: Mapping, start: Start) -> None:
        self._process, self._mapping, self._start = process, mapping, start
        self._until = time.monotonic() + _SECONDS
        self._server: _Server | None = None
        self._serves = process.rank is None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, change: dict[str, Any] | None, ticks: int) -> Seen | None:
        """The first `ticks` optimizer steps with a change; None where that could not be run."""
        begin = change["begin"] if change is not None else ticks
        expected = self._losses(self._process, begin)
        if self._serves and expected:  # without losses to compare, what the run before wrote might matter
            found, losses = self._forked(change, ticks, begin)
            if found is not None and losses[: len(expected)] == expected:
                return found
            self._serves = False
        found, losses = self._anew(change, ticks, begin)
        return found if losses[: len(expected)] == expected else None  # it may be a step further

    def death(self, tick: int) -> Death | None:
        """Whether all units of a hidden layer die, at this optimizer step at the latest."""
        left = self._until - time.monotonic()
        if left < 1:
            return None
        return death_in(looked_at(self._start, max(0, tick - AROUND), tick + AFTER, left / 2), tick)

    def _forked(self, change: dict[str, Any] | None, ticks: int, begin: int) -> tuple[Seen | None, list[float]]:
        """A run by the serving process."""
        left = self._until - time.monotonic()
        if left < 1:
            return None, []
        if self._server is None:
            self._server = self._open.enter_context(_Server(self._start, left))
        process, used = self._server.run(change, ticks, left)
        if process is None:
            return None, []
        found = seen(process, self._mapping, self._server.session / "growth")
        found.used = used
        return found, self._losses(process, begin)

    def _anew(self, change: dict[str, Any] | None, ticks: int, begin: int) -> tuple[Seen | None, list[float]]:
        """A run of the command from its start."""
        left = self._until - time.monotonic()
        if left < 1:
            return None, []
        session = launch.new_session()
        answers = Answers(session)

        def enough() -> bool:
            answers.poll()
            return any(p.ticks >= ticks or p.fault is not None for p in answers.trainers)

        with self._start({**_PLAN, "growth": {"change": change}}, session) as launched:
            launched.wait(until=enough, timeout=left)
            (session / "done").touch()
            answers.poll()
            launched.stop()
            same = [p for p in answers.trainers if p.rank == self._process.rank]
            process = max(same, key=lambda p: p.ticks, default=None)
            found = seen(process, self._mapping, session / "growth") if process is not None else None
            if found is not None:
                found.used = (session / "used").exists()
            launched.remove()
        return found, self._losses(process, begin) if process is not None else []

    @staticmethod
    def _losses(process: Process, begin: int) -> list[float]:
        """Those that a change from tick `begin` on leaves as they are: it begins with the update of that tick."""
        before = [p.loss for p in process.passes if p.tick < begin]
        first = [p.loss for p in process.passes if p.tick == begin][:1]
        return [loss for loss in before + first if math.isfinite(loss)]


class _Server:
    """The command, stopped where it has made an optimizer; see `attach.serving`."""

    def __init__(self, start: Start, seconds: float) -> None:
        self.session = launch.new_session()
        os.mkfifo(self.session / ORDERS)
        self._answers = Answers(self.session)
        self._launched = start({**_PLAN, "growth": {"serve": True}}, self.session)
        self._number = 0
        self._launched.wait(until=self._known, timeout=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        (self.session / "done").touch()
        self._launched.remove()

    def _known(self) -> bool:
        path = self.session / SERVING
        return path.exists() and bool(path.read_text())

    def run(self, change: dict[str, Any] | None, ticks: int, seconds: float) -> tuple[Process | None, bool]:
        """(what a process that was forked for this change has done, whether the change had an effect)."""
        if self._launched.ended or not self._known() or (self.session / SERVING).read_text() != "yes":
            return None, False
        self._number += 1
        used, number = f"used{self._number}", self._number
        (self.session / f"{number}.json").write_text(json.dumps({"change": change, "used": used}))
        self._ask(number)
        heard = time.monotonic()

        def enough() -> bool:
            nonlocal heard
            heard = time.monotonic() if self._answers.poll() else heard
            process = self._of(number)
            done = process is not None and (process.ticks >= ticks or process.fault is not None)
            return done or process_file(self.session, number, over=True).exists() or time.monotonic() - heard > _SILENT

        self._launched.wait(until=enough, timeout=seconds)
        self._ask(0)
        self._answers.poll()
        return self._of(number), (self.session / used).exists()

    def _of(self, number: int) -> Process | None:
        path = process_file(self.session, number)
        return self._answers.processes.get(int(path.read_text())) if path.exists() else None

    def _ask(self, number: int) -> None:
        with (self.session / ORDERS).open("r+b", buffering=0) as pipe:  # r+: it is opened although nobody reads now
            pipe.write(b"%d\n" % number)
