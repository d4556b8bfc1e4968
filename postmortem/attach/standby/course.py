"""Where the program is in its loop: a loop may step several optimizers, or one of them several times."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from postmortem.replay.trace.user_code import owner_of

if TYPE_CHECKING:
    import torch

_LONG = 12  # steps of optimizers in one round of a loop, at most


class Course:
    """The last steps of optimizers: which one, and the place of the program that called it."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, Any]] = deque(maxlen=_LONG)

    def passed(self, optimizer: torch.optim.Optimizer) -> None:
        """A step has ended."""
        frame = sys._getframe(1)
        while frame.f_back is not None and owner_of(frame.f_code.co_filename) not in ("user", "package", "driver"):
            frame = frame.f_back
        self._last.append((id(optimizer), (frame.f_code, frame.f_lasti)))

    def here(self) -> list[tuple[int, Any]]:
        """The place where the program is now."""
        return list(self._last)

    def at(self, place: list[tuple[int, Any]]) -> bool:
        """Whether the program is there again, as far as its last steps tell."""
        return not place or list(self._last)[-len(place) :] == place
