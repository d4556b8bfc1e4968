"""Keeps SQLite databases of an attempt in memory: SQLite opens and writes files itself, in C."""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any

_MOST = 256 << 20
"""Bytes; a larger database is not copied: what is written to it is left out."""


def keep_in_memory() -> None:
    """From here on; for a process that is denied writing, and that ends without going back."""
    sqlite = sys.modules.get("sqlite3")
    if sqlite is None:
        return
    for found in [o for o in gc.get_objects() if issubclass(type(o), sqlite.Connection)]:
        _detach(sqlite, found)
    connecting = sqlite.connect

    @functools.wraps(connecting)
    def connect(*args: Any, **kwargs: Any) -> Any:
        try:
            made = connecting(*args, **kwargs)
        except sqlite.OperationalError:  # it is new, or cannot be written
            where = ":memory:"
            return connecting(where, *args[1:], **{k: v for k, v in kwargs.items() if k != "database"})
        _detach(sqlite, made)
        return made

    for module in (sqlite, sys.modules.get("sqlite3.dbapi2")):
        if module is not None:
            module.connect = connect  # type: ignore[attr-defined]


def _detach(sqlite: Any, connection: Any) -> None:
    """The connection goes on with a copy of its database."""
    try:
        if connection.in_transaction:
            connection.rollback()
        pages, size = (connection.execute(f"pragma {what}").fetchone()[0] for what in ("page_count", "page_size"))
        if 0 < pages * size <= _MOST:
            connection.deserialize(connection.serialize())
            return
    except (sqlite.Error, AttributeError, MemoryError):  # of another thread, closed, or an SQLite without these
        pass
    _ignore_writes(sqlite, connection)


def _ignore_writes(sqlite: Any, connection: Any) -> None:
    """Inserts, new tables and transactions do nothing."""
    silent = {sqlite.SQLITE_INSERT, sqlite.SQLITE_TRANSACTION, sqlite.SQLITE_CREATE_TABLE, sqlite.SQLITE_CREATE_INDEX}

    def allowed(action: int, *_: Any) -> int:
        return int(sqlite.SQLITE_IGNORE if action in silent else sqlite.SQLITE_OK)

    try:
        connection.set_authorizer(allowed)
    except sqlite.Error:  # closed, or of another thread
        return
