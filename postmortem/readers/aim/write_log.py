"""Reads the logs of RocksDB: of the changes that are in no table yet (``.log``), and of the files of a database.

A log is a row of chunks in blocks of 32 KiB: a masked CRC32C (of the type and the data), a two-byte length, a type
(whole, first, middle or last part of a record, or the same of a file that is used again, with its number) and the data.

Format: https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format, db/write_batch.cc, db/version_edit.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from postmortem.readers.aim.bits import DELETED, DELETED_ONCE, RANGE_DELETED, SET, DamagedError, part, varint
from postmortem.readers.shared.crc32c import masked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Extent
    from postmortem.readers.aim.bits import Entry

_BLOCK = 1 << 15
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_NUMBERED = 4
"""What is added to the types of chunks with the number of their file, four bytes before the data."""
_TWO_PARTS = {SET, RANGE_DELETED}
_ONE_PART = {DELETED, DELETED_ONCE}
_NOTED = 3
"""A remark of the writer, which has no sequence number."""
_LOG = 2
_NUMBERS = {_LOG, 3, 4, 9, 10, 200, 203}
"""Kinds of entries in the list of files that are one number: of the log, of the next file, of the last change, of the
log before, of the first log to keep, of a family of columns, of the last family."""
_TEXTS = {1, 201}
"""The name of the order of keys, and that of a family."""
_LEVEL_AND_TEXT, _REMOVED, _ADDED, _REMOVED_FAMILY, _GROUP = 5, 6, 103, 202, 300
_LATER_PARTS = 1 << 13
"""The bit of kinds of parts that a reader may pass over."""


class Damage(Protocol):
    """What is called with each place of a file that cannot be read, and why."""

    def __call__(self, offset: int, what: str, extent: Extent = "records", /) -> None: ...


@dataclass(slots=True)
class LiveFiles:
    """The tables of a database, and the number of the first log that holds changes which are not in them."""

    tables: set[int] = field(default_factory=set)
    first_log: int = 0


def records(data: bytes, damage: Damage) -> Iterator[bytes]:
    """The records of a log; `damage` is called with each place that cannot be read, and why.

    After damage, reading goes on with the next block, as RocksDB does.
    """
    at, parts = 0, list[bytes]()
    while at + _HEADER.size <= len(data):
        left = _BLOCK - at % _BLOCK
        crc, size, kind = _HEADER.unpack_from(data, at)
        if left < _HEADER.size or (kind == 0 and crc == 0 and size == 0):
            at += left  # the end of a block, or of what was written of one that was made beforehand
            continue
        end = at + _HEADER.size + size
        if end > len(data) or masked(data[at + 6 : end]) != crc or not 0 < kind <= _LAST + _NUMBERED:
            if end > len(data):
                damage(at, "the file ends within a record", "cut")
            else:
                damage(at, "a record with a wrong checksum")
            at, parts = at + left, []
            continue
        numbered = kind > _NUMBERED
        kind -= _NUMBERED * numbered
        parts.append(data[at + _HEADER.size + 4 * numbered : end])
        if kind in (_WHOLE, _FIRST):
            parts = parts[-1:]
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
            parts = []
        at = end
    if parts or data[at:].strip(b"\0"):
        damage(at, "the file ends within a record", "cut")


def changes(record: bytes) -> Iterator[Entry]:
    """What a record of a ``.log`` changes. DamagedError after the changes that could be read."""
    if len(record) < 12:
        raise DamagedError("a record that is too short")
    sequence, at = int.from_bytes(record[:8], "little"), 12
    while at < len(record):
        kind = record[at]
        key, at = part(record, at + 1)
        if kind in _TWO_PARTS:
            value, at = part(record, at)
            yield key, sequence, kind, value
        elif kind in _ONE_PART:
            yield key, sequence, kind, b""
        elif kind != _NOTED:
            raise DamagedError(f"a change of kind {kind}, which is not known")
        sequence += kind != _NOTED


def live_files(data: bytes, damage: Damage) -> LiveFiles:
    """The files that a ``MANIFEST`` names, after all its records."""
    live = LiveFiles()
    for record in records(data, damage):
        try:
            _apply(record, live)
        except DamagedError as error:
            damage(0, str(error))
    return live


def _apply(edit: bytes, live: LiveFiles) -> None:
    at = 0
    while at < len(edit):
        kind, at = varint(edit, at)
        if kind in _NUMBERS:
            number, at = varint(edit, at)
            if kind == _LOG:
                live.first_log = max(live.first_log, number)
        elif kind in _TEXTS or kind & _LATER_PARTS:
            _, at = part(edit, at)
        elif kind == _LEVEL_AND_TEXT:
            _, at = varint(edit, at)
            _, at = part(edit, at)
        elif kind == _REMOVED:
            _, at = varint(edit, at)
            number, at = varint(edit, at)
            live.tables.discard(number)
        elif kind == _ADDED:
            number, at = _added(edit, at)
            live.tables.add(number)
        elif kind == _GROUP:
            _, at = varint(edit, at)
        elif kind != _REMOVED_FAMILY:
            raise DamagedError(f"an entry of kind {kind}, which is not known")


def _added(edit: bytes, at: int) -> tuple[int, int]:
    """The number of a table that was added, and where the next thing begins."""
    _, at = varint(edit, at)  # its level
    number, at = varint(edit, at)
    _, at = varint(edit, at)  # its size
    _, at = part(edit, at)  # its smallest and its largest key
    _, at = part(edit, at)
    _, at = varint(edit, at)  # their sequence numbers
    _, at = varint(edit, at)
    while True:
        more, at = varint(edit, at)
        if more == 1:
            return number, at
        _, at = part(edit, at)
