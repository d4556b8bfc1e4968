"""The history file: one JSON object per line, written atomically, with a size limit."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from postmortem.attach.measure.owned import Owned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SECONDS = 2.0  # rows wait so long for a write, at most
_WAITING = 1 << 16  # characters
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Rows:
    """Writes rows to ``NAME.jsonl`` in a folder, with the rank in its name where there are several ranks.

    limit: of its size in bytes. From half of it on one row of four is kept, from three quarters on one of 16, and so
    on: each part covers twice as many rows as the one before, so that a long training is known to its end.
    """

    def __init__(
        self, folder: Path, rank: Callable[[], int | None], *, limit: int = 64 << 20, name: str = "history"
    ) -> None:
        self._folder, self._rank, self._limit, self._name = folder, rank, limit, name
        self._file: Owned | None = None
        self._path = folder
        self._lines: list[str] = []
        self._waiting = self._written = self._rows = 0
        self._since = time.monotonic()
        self._every = self._part = 1

    @property
    def folder(self) -> Path | None:
        """Where the file is; None until there is one."""
        return self._folder if self._file is not None else None

    def add(self, row: dict[str, Any]) -> None:
        """Takes a row; whole lines are written some at a time. Raises OSError if they cannot be."""
        self._rows += 1
        if self._rows % self._every:
            return
        line = json.dumps(row) + "\n"
        self._lines.append(line)
        self._waiting += len(line)
        if self._waiting >= _WAITING or time.monotonic() - self._since >= _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        self._since = time.monotonic()
        if not self._lines:
            return
        data = "".join(self._lines).encode()
        self._lines, self._waiting = [], 0
        fd = self._file.fd if self._file is not None else None
        if fd is None:
            fd = self._open() if self._file is None else os.open(self._path, _APPENDED, 0o666)
            self._file = Owned(fd)
        if (size := os.fstat(fd).st_size) < self._written:  # somebody cleared the history
            self._written, self._part, self._every = size, 1, 1
        if self._written + len(data) > self._limit:
            return
        os.write(fd, data)
        self._written += len(data)
        while self._written > self._limit * (1 - 0.5**self._part):
            self._part, self._every = self._part + 1, self._every * 4

    def _open(self) -> int:
        """A new file: another process of the same command may have trained before, or may do so now."""
        rank = self._rank()
        name = f"{self._name}.jsonl" if rank is None else f"{self._name}-rank{rank}.jsonl"
        for number in range(1, 100):
            folder = self._folder if number == 1 else self._folder / f"training-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(folder / name, _APPENDED | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            self._folder, self._path = folder, folder / name
            return file
        raise FileExistsError(f"{self._folder}: a hundred trainings have a history there")
