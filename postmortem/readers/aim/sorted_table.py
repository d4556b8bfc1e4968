"""Reads a table of RocksDB (``.sst``): blocks of sorted keys and their values, each with a checksum.

At the end is the footer: the kind of the checksums, where the index and the list of other blocks are, the version of
the format, a magic number. The index says where each block of data is. A key in a block is stored without the bytes
that it shares with the one before it; behind it are one byte that says whether the key was set or deleted, and 7 of a
sequence number. Ranges of keys that were deleted are in a block of their own.

Format: https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format, table/format.h, table/block_based.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from postmortem.readers.aim.bits import DamagedError, varint
from postmortem.readers.aim.snappy import unpacked
from postmortem.readers.shared.crc32c import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postmortem.readers.aim.bits import Entry
    from postmortem.readers.aim.write_log import Damage

_MAGIC = 0x88E241B785F4CFF7
_FOOTER = 53
_TRAILER = 5
_CRC32C = 1
_UNPACK: dict[int, Callable[[bytes], bytes]] = {0: bytes, 1: unpacked}
_PACKED = {2: "zlib", 3: "bzip2", 4: "LZ4", 5: "LZ4HC", 6: "XPRESS", 7: "zstd"}
_RANGES = b"rocksdb.range_del"


def entries(data: bytes, damage: Damage) -> Iterator[Entry]:
    """All entries of a table; `damage` is called with the place of a block that cannot be read, and why.

    DamagedError if the footer or the index cannot be read: then nothing of the table is known.
    """
    others, index = _footer(data)
    blocks = dict(_others(data, others, damage))
    if _RANGES in blocks:
        yield from _read(data, blocks[_RANGES], damage)
    for handle in _index(_block(data, index)):
        yield from _read(data, handle, damage)


def _footer(data: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the list of other blocks is, and the index."""
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise DamagedError("the table has no end: it is truncated, or of a format that is not known")
    if footer[0] != _CRC32C or not 1 <= (version := int.from_bytes(footer[41:45], "little")) <= 5:
        raise DamagedError(f"version {version if footer[0] == _CRC32C else footer[0]} of the format is not known")
    others, at = _handle(footer, 1)
    return others, _handle(footer, at)[0]


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    begin, at = varint(data, at)
    size, at = varint(data, at)
    return (begin, size), at


def _block(data: bytes, handle: tuple[int, int]) -> bytes:
    """The bytes of a block, unpacked, without its list of places to begin at. DamagedError."""
    begin, size = handle
    end = begin + size
    if end + _TRAILER > len(data):
        raise DamagedError("the file ends before it")
    if masked(data[begin : end + 1]) != int.from_bytes(data[end + 1 : end + _TRAILER], "little"):
        raise DamagedError("its checksum is wrong")
    if (kind := data[end]) not in _UNPACK:
        raise DamagedError(f"it is compressed with {_PACKED.get(kind, kind)}, which is not read")
    block = _UNPACK[kind](data[begin:end])
    rest = 4 * (int.from_bytes(block[-4:], "little") & 0x7FFFFFFF) + 4
    if rest > len(block):
        raise DamagedError("a block without a beginning")
    return block[: len(block) - rest]


def _read(data: bytes, handle: tuple[int, int], damage: Damage) -> Iterator[Entry]:
    """The entries of a block of data; those before a place that cannot be read, if there is one."""
    try:
        for key, value in _pairs(_block(data, handle)):
            if len(key) < 8:
                raise DamagedError("a key that is too short")
            packed = int.from_bytes(key[-8:], "little")
            yield key[:-8], packed >> 8, packed & 0xFF, value
    except DamagedError as error:
        damage(handle[0], str(error))


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block."""
    at, key = 0, b""
    while at < len(block):
        shared, at = varint(block, at)
        own, at = varint(block, at)
        size, at = varint(block, at)
        end = at + own + size
        if shared > len(key) or end > len(block):
            raise DamagedError("a key or a value that ends too early")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : end]
        at = end


def _others(data: bytes, handle: tuple[int, int], damage: Damage) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """The names of the other blocks, and where they are."""
    try:
        for name, place in _pairs(_block(data, handle)):
            yield name, _handle(place, 0)[0]
    except DamagedError as error:
        damage(handle[0], str(error))


def _index(block: bytes) -> Iterator[tuple[int, int]]:
    """Where the blocks of data are; only the first place of a group, and here each is one, is stored whole."""
    at = 0
    handle = (0, 0)
    while at < len(block):
        shared, at = varint(block, at)
        own, at = varint(block, at)
        at += own
        if shared == 0:
            handle, at = _handle(block, at)
        else:
            more, at = varint(block, at)
            handle = handle[0] + handle[1] + _TRAILER, handle[1] + ((more >> 1) ^ -(more & 1))
        yield handle
