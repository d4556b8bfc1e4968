"""Writes the facts of this process, and decides which steps are observed."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from postmortem.silent import facts
from postmortem.silent.facts import Gap, Over
from postmortem.silent.observe.identities import Numbers
from postmortem.silent.observe.parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from postmortem.silent.facts import Fact

_DENSE = 60
"""Optimizer steps at the start that are all looked at."""
_WINDOW = 3
_SPACING = 1.3
"""After them, windows of steps whose distance grows by this factor."""
_CLOSING = 0.95
"""Part of the time after which the last window begins: what comes late is seen as well."""
_FLUSH = 0.5  # seconds
_MOST = 64 << 20  # bytes of facts


class Recorder:
    """What this process has seen so far.

    looking: facts are wanted now. steps: optimizer steps that have ended. sampled: this step is one of the few in which
    what costs more is looked at. grad: the program's grad mode at the event that is told.
    loader: number of the loader that gave a batch last. closely: the first and last of the steps that are looked at in
    this way; then every step is looked at, and no others are `sampled`.
    """

    def __init__(
        self, folder: Path, *, steps: int | None, seconds: float | None, closely: tuple[int, int] | None = None
    ) -> None:
        self._closely = closely
        self._folder, self._limit, self._seconds = folder, steps, seconds
        self._began = time.monotonic()
        self.pid = os.getpid()
        self.steps = 0
        self.looking = self.sampled = True
        self.over, self.grad = False, True
        self.modules, self.optimizers, self.parameters = Numbers(), Numbers(), Parameters(self.add)
        self._lines: list[str] = []
        self._written = 0
        self._flushed = time.monotonic()
        self._file: int | None = None
        self._windows = _DENSE
        self._window_ends = _DENSE
        self._peeking = self._again = False
        self.loader: int | None = None
        self._spent, self._since = 0.0, 0.0
        self.at_end: list[Callable[[], None]] = []
        self.paused: list[Callable[[bool], None]] = []

    def add(self, fact: Fact) -> None:
        """Writes one fact."""
        if self.over or self._written > _MOST:
            return
        line = json.dumps(facts.as_json(fact))
        self._written += len(line)
        self._lines.append(line)
        if time.monotonic() - self._flushed > _FLUSH and self.steps:
            self._flush()

    @property
    def closely(self) -> bool:
        """This is one of the few steps of a rerun for which the whole look is made."""
        return self._closely is not None and self.sampled

    def clock(self) -> float:
        """Seconds that the program itself worked: it stands still while watchers do."""
        return (self._since or time.perf_counter()) - self._spent

    def watches(self, begins: bool) -> None:
        """Watchers begin, or have ended, to look at something."""
        if begins:
            self._since = time.perf_counter()
        else:
            self._spent += time.perf_counter() - self._since
            self._since = 0.0

    def forked(self) -> None:
        """In a child of this process, which is not observed."""
        self.over, self.looking, self.parameters.wanted = True, False, False

    def resume(self) -> None:
        """In a child that `multiprocessing` forked, to work for the program: observed from its start."""
        self.pid, self._file, self._written = os.getpid(), None, 0
        self._lines.clear()
        self.steps, self.over, self.looking, self.sampled = 0, False, True, True
        self.parameters.wanted = True
        self._windows = self._window_ends = _DENSE

    def stepped(self) -> None:
        """An optimizer's step has ended: whether the next one is looked at."""
        self.steps += 1
        if self.steps == 1:  # imports, data and compilation take as long as they take
            self._began = time.monotonic()
        self.peek(False)
        if self.over:
            return
        if self._enough():
            self.finish(ended=False)
            return
        if self._closely is not None:
            self.sampled = self._closely[0] <= self.steps <= self._closely[1]
            return
        if self._again and self.looking and self.steps >= _DENSE:
            self._window_ends = max(self._window_ends, self.steps + 1)
        usual = self.steps < 4 or (self.steps & (self.steps - 1)) == 0 or self.steps == self._window_ends - 1
        last = self._limit is not None and self.steps >= self._limit - _WINDOW
        self.sampled, self._again = usual or last or self._again, False
        if self.steps < _DENSE:
            return
        if self.looking and self.steps >= self._window_ends and not last:
            self._windows = max(self._windows + _WINDOW, int(self._windows * _SPACING))
            self._pause(True)
        elif not self.looking and (last or self.steps >= self._windows):
            self._window_ends = self.steps + _WINDOW
            self._pause(False)

    def look_again(self) -> None:
        """What was seen in this step has to be confirmed: the next one is `sampled` as well."""
        self._again = True

    def _enough(self) -> bool:
        """All steps were made, or the time is up. The last steps are looked at, also where they are short."""
        gone = time.monotonic() - self._began
        if self._seconds is not None and gone > self._seconds:
            return True
        if self._seconds is not None and gone > _CLOSING * self._seconds:
            last = self.steps + _WINDOW
            self._limit = last if self._limit is None else min(self._limit, last)
        return self._limit is not None and self.steps >= self._limit

    def peek(self, begins: bool) -> None:
        """Between looks, what the program does apart from its steps is looked at from now on, or no longer."""
        if self.over or begins == self._peeking or (begins and self.looking):
            return
        self._peeking = self.sampled = begins
        self._pause(not begins)

    def _pause(self, paused: bool) -> None:
        self.looking = not paused
        if paused:
            self.add(Gap(self.steps))
        for listener in self.paused:
            listener(paused)

    def finish(self, *, ended: bool) -> None:
        """Nothing is observed after this."""
        if self.over or self.pid != os.getpid():
            return
        for last in self.at_end:
            last()
        self.add(Over(self.steps, ended))
        if self.steps or self.optimizers.any:
            self._flush()
            for kind in ("ended", "over") if ended else ("over",):
                (self._folder / f"{self.pid}.{kind}").touch()
        self.over, self.parameters.wanted = True, False
        if self.looking:
            self._pause(True)

    def save(self) -> None:
        """Writes what is known at present to the disk: a process may be ended at any time."""
        self._flush()

    def _flush(self) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{self.pid}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._lines:
            os.write(self._file, ("\n".join(self._lines) + "\n").encode())
        self._lines.clear()
        self._flushed = time.monotonic()
