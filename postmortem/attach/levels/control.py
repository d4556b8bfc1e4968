"""The level of a running training: requested by a word in a file beside the history, reported in another file."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.histories import Level, note_watch, wanted_level

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LOOK = 1.0  # seconds between two looks
_SHARE = 0.001  # of the time, which looks may take: on a slow file system there are fewer


class Control:
    """Of one process. level: at the start."""

    def __init__(self, level: Level, rank: Callable[[], int | None]) -> None:
        self.level, self._rank = level, rank
        self._told = False
        self._seen = 0
        self._next = 0.0

    def asked(self, folder: Path | None) -> Level | None:
        """Called after each tick: the level that was asked for since the last time, if it is another one.

        folder: of the history, None until it is there.
        """
        now = time.monotonic()
        if folder is None or now < self._next:
            return None
        when, level = wanted_level(folder)
        self._next = now + max(_LOOK, (time.monotonic() - now) / _SHARE)
        if not self._told:
            self._tell(folder)
        if when == self._seen:
            return None
        self._seen = when
        if level is None or level == self.level:
            return None
        self.level = level
        self._tell(folder)
        return level

    def ended(self, folder: Path | None) -> None:
        """Nothing is measured any more."""
        if folder is not None:
            self._tell(folder, ended=time.time())

    def _tell(self, folder: Path, **more: Any) -> None:
        self._told = True
        with suppress(OSError):  # who reads it sees no level then
            note_watch(folder, self._rank(), level=self.level, pid=os.getpid(), since=time.time(), **more)
