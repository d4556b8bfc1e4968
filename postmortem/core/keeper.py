"""Where results that cost much are kept from one scan to the next; what keeps them is not known here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Keeper(Protocol):
    """A cache of bytes under names."""

    def known(self, name: str) -> bytes | None:
        """What is kept under this name; None if nothing is."""

    def keep(self, name: str, data: bytes) -> None:
        """Keeps `data`; a full disk or a folder that cannot be written costs only this entry."""


KEEPER: ContextVar[Keeper | None] = ContextVar("keeper", default=None)
"""The cache of the scan that this is inside of."""
