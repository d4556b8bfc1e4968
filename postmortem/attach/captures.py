"""When a capture is written: on a fault, on an exception, on SIGTERM or SIGUSR2, or when the request file appears.

A signal is only taken where the program leaves it to its default, which is to end the process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

REQUEST = "request"
"""A file of this name in the folder of the captures asks for one."""
_LOOK = 1.0  # seconds between two looks for that file
_LENGTH = 64


class Captures:
    """In one process. plan: ``{"folder": …, "keep": …, "most": …}``; None: no capture is ever written.

    terminated: called on SIGTERM, to write one of the last step before the process ends.
    """

    def __init__(self, plan: dict[str, Any] | None, terminated: Callable[[], None]) -> None:
        self._plan = plan
        self._terminated = terminated
        self._updated: deque[int] = deque(maxlen=_LENGTH)
        self._numbers: dict[int, int] = {}
        self._wanted = False
        self._looked = 0.0
        self._taken: list[int] | None = None

    def listen(self) -> None:
        """A training begins in this process: from now on the signals are heard."""
        if self._plan is None or self._taken is not None:
            return
        self._taken = []
        if threading.current_thread() is not threading.main_thread():
            return
        for name, handler in (("SIGTERM", self._on_term), ("SIGUSR2", self._on_request)):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, handler)
                self._taken.append(number)

    def leave(self) -> None:
        """For a process that the program forked: it ends by a signal as it would without us."""
        for number in self._taken or ():
            if getattr(signal.getsignal(number), "__self__", None) is self:
                signal.signal(number, signal.SIG_DFL)

    def updated(self, optimizer: Any) -> None:
        """An optimizer has ended a tick: the order in which they take turns tells where in its loop the program is."""
        self.listen()
        self._updated.append(self._numbers.setdefault(id(optimizer), len(self._numbers)))

    def asked(self, rank: int | None) -> dict[str, Any] | None:
        """What the copy has to know to write one; the folder is there after this."""
        if self._plan is None:
            return None
        with suppress(OSError):  # it cannot be made: the copy says so
            Path(self._plan["folder"]).mkdir(parents=True, exist_ok=True)
        return {**self._plan, "rank": rank, "history": list(self._updated)}

    def requested(self) -> bool:
        """Called at the end of each tick: whether somebody asked for a capture since the last time."""
        wanted, self._wanted = self._wanted, False
        now = time.monotonic()
        if self._plan is None or now - self._looked < _LOOK:
            return wanted
        self._looked = now
        path = os.path.join(self._plan["folder"], REQUEST)
        if not os.path.exists(path):
            return wanted
        with suppress(OSError):
            os.remove(path)
        return True

    def _on_request(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        if os.environ.get("RANK", "0") == "0":
            self._terminated()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def begin_after(tick: int, history: list[int]) -> int:
    """The first tick of a program at whose end it is in the same place of its loop as before `tick`.

    history: which optimizer updated in the ticks before, the oldest first. A GAN's loop has several ticks; the place of
    one in it is that of all that are a multiple of the loop later.
    """
    length = next((p for p in range(1, len(history) // 2 + 1) if history[p:] == history[:-p]), 1)
    return (tick - 1) % length
