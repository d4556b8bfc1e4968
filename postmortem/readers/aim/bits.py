"""What all files of a database of RocksDB are made of: numbers of variable length, and parts with their length."""

from __future__ import annotations

DELETED, SET, DELETED_ONCE, RANGE_DELETED = 0, 1, 7, 15
"""What an entry does with its key."""
Entry = tuple[bytes, int, int, bytes]
"""Key, sequence number, what was done, value: of a range that was deleted, the key after its last."""


class DamagedError(Exception):
    """Bytes that are not what the format says."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number of 7-bit groups, lowest first, at `at`, and where the next thing begins."""
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise DamagedError("a number that ends too early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamagedError("a number of more than 64 bits")


def part(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes whose length stands before them, and where the next thing begins."""
    size, at = varint(data, at)
    if at + size > len(data):
        raise DamagedError("a text that ends too early")
    return data[at : at + size], at + size
