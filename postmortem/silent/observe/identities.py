"""Numbers for objects of the program: the same object has the same number during its lifetime."""

from __future__ import annotations

import weakref
from typing import Any


class Numbers:
    """Numbers objects of one kind in the order in which they are met; nothing is kept alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = 0

    @property
    def any(self) -> bool:
        """Whether one was met."""
        return self._next > 0

    def alive(self) -> list[Any]:
        """Those that were met and still live."""
        return [thing for found, _ in list(self._known.values()) if (thing := found()) is not None]

    def known(self, thing: Any) -> int | None:
        """The number of an object that was met before."""
        entry = self._known.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def of(self, thing: Any) -> tuple[int, bool]:
        """(its number, whether it is met for the first time)."""
        number = self.known(thing)
        if number is not None:
            return number, False
        number, self._next = self._next, self._next + 1
        self._known[id(thing)] = weakref.ref(thing), number
        return number, True
