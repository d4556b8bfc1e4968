"""How far a long operation is: the search for files and the readers report it, and whoever shows it listens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Listener = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is of it (0: unknown)."""
_LISTENER: ContextVar[Listener | None] = ContextVar("progress", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """What is reported inside goes to `listener`."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


STARTED = "the command was started"
"""What is reported for each start of the user's own command."""
_EVERY = 8192


def progressed(what: str, done: int, total: int = 0) -> None:
    """Reports progress; often enough for a person to see it, rarely enough to cost nothing (every few MiB)."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, done, total)


def numbered(lines: Sequence[str], what: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, from 1; reports every few thousand of them."""
    for number, line in enumerate(lines, 1):
        if number % _EVERY == 0:
            progressed(what, number, len(lines))
        yield number, line
