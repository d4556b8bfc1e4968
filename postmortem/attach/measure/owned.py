"""Descriptors of ours in the user's process. The program may close whatever is open (`os.closerange`), and open its own
files under the same numbers."""

from __future__ import annotations

import os
from contextlib import suppress


class Owned:
    """A descriptor that is used only while it is still the same open file."""

    def __init__(self, fd: int) -> None:
        self._fd, self._is = fd, _identity(fd)

    @property
    def fd(self) -> int | None:
        """The descriptor; None where the program has closed it."""
        return self._fd if _identity(self._fd) == self._is else None

    def close(self) -> None:
        """Closes it, if it is still ours."""
        if self.fd is not None:
            with suppress(OSError):
                os.close(self._fd)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
