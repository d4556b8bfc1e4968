"""Finds the records of a W&B transaction log, and resynchronises after damage.

The file begins with ``:W&B``, a magic number (0xBEE1) and a version byte. Then come chunks as in LevelDB's log, in
blocks of 32 KiB: CRC32 (of the type and the data; zlib's, not LevelDB's CRC32C), a two-byte length, a type (whole,
first, middle or last part of a record) and the data. Fewer than 7 bytes at the end of a block are zeros. Source:
wandb/sdk/internal/datastore.py (wandb < 0.29) and core/pkg/leveldb of github.com/wandb/wandb.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.shared.damage import HOLE, Damage, damage_in

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b":W&B"
FILE_HEADER = 7
HEADER = 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
BLOCK = 1 << 15
_HEADER = struct.Struct("<IHB")
_SEARCHED = 1 << 20
"""Bytes that are searched for a first chunk; after them, only the starts of blocks are."""
_TYPE_CRC = {kind: zlib.crc32(bytes([kind])) for kind in (WHOLE, FIRST, MIDDLE, LAST)}


def records(data: bytes, damage: list[Damage]) -> Iterator[bytes]:
    """Yields the payloads of all intact records in order; what could not be read is appended to `damage`.

    Reading continues at the next chunk with a valid checksum, wherever it is: a chunk does not depend on the blocks.
    """
    parts: list[bytes] = []
    begun = 0  # where the unfinished record in `parts` began
    for start, stop, kind in _chunks(data, damage):
        if kind == WHOLE and not parts:  # as nearly all are
            yield data[start + HEADER : stop]
            continue
        if parts and kind in (WHOLE, FIRST):
            damage.append(Damage(begun, start))
            parts = []
        if not parts and kind in (MIDDLE, LAST):  # its beginning was lost
            damage.append(Damage(start, stop))
            continue
        if not parts:
            begun = start
        parts.append(data[start + HEADER : stop])
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []
    if parts:
        damage.append(Damage(begun, len(data), True))


def _chunks(data: bytes, damage: list[Damage]) -> Iterator[tuple[int, int, int]]:
    """Start, stop and type of all intact chunks."""
    zeros = len(data) - len(data.lstrip(b"\0")) if data.startswith(bytes(HOLE)) else 0
    is_log = data.startswith(MAGIC, zeros)
    pos = zeros + FILE_HEADER if is_log else max(0, zeros - 4)  # the checksum of a chunk may begin with zeros
    unreported = bool(zeros)  # whether the first damage begins with these zeros
    if zeros and (is_log or zeros == len(data)):
        damage.append(damage_in(data, 0, zeros))
        unreported = False
    found_any = False
    size, header, crc32, whole = len(data), _HEADER.unpack_from, zlib.crc32, _TYPE_CRC[WHOLE]
    while pos < size:
        if not unreported and pos + HEADER <= size:  # the usual case, without calls
            crc, length, kind = header(data, pos)
            stop = pos + HEADER + length
            if kind == WHOLE and stop <= size and crc32(data[pos + HEADER : stop], whole) == crc:
                found_any = True
                yield pos, stop, kind
                pos = stop
                continue
        at, stop = pos, _stop(data, pos)
        if stop is None:
            at = _after_padding(data, pos)
            if at == len(data):
                return
            stop = _stop(data, at)
        kind = data[at + 6] if at + HEADER <= len(data) else 0
        if stop is None:
            limit = len(data) if found_any or is_log else zeros + _SEARCHED
            found = _search(data, pos + 1, limit)
            if found is None:
                found = _next_block(data, limit)
            # A tail shorter than a header, or than its header claims, was being written when the run stopped.
            unfinished = kind in _TYPE_CRC and at + HEADER + _length(data, at) > len(data)
            cut = found is None and (len(data) - pos < HEADER or unfinished)
            damage.append(damage_in(data, 0 if unreported else pos, len(data) if found is None else found, cut))
            unreported = False
            if found is None:
                return
            pos = found
            continue
        if unreported:
            damage.append(damage_in(data, 0, at))
            unreported = False
        found_any = True
        yield at, stop, kind
        pos = stop


def _after_padding(data: bytes, pos: int) -> int:
    """`pos`, where no chunk begins, or the chunk or end of file after the up to 6 zeros that fill a block."""
    for at in range(pos + 1, min(pos + HEADER, len(data) + 1)):
        if data[at - 1]:
            break
        if at == len(data) or _stop(data, at) is not None:
            return at
    return pos


def _length(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 4 : at + 6], "little")


def _stop(data: bytes, at: int) -> int | None:
    """Where the chunk at `at` ends, or None if there is no intact chunk."""
    if at + HEADER > len(data):
        return None
    crc, length, kind = _HEADER.unpack_from(data, at)
    start = at + HEADER
    if kind not in _TYPE_CRC or start + length > len(data):
        return None
    return start + length if zlib.crc32(data[start : start + length], _TYPE_CRC[kind]) == crc else None


def _search(data: bytes, start: int, limit: int) -> int | None:
    """Position of the first intact chunk in ``range(start, limit)``."""
    if start + 6 > len(data):
        return None
    types = np.frombuffer(data, np.uint8, max(0, min(limit, len(data)) - start - 6), start + 6)
    for at in np.flatnonzero((types >= WHOLE) & (types <= LAST)):
        if _stop(data, start + int(at)) is not None:
            return start + int(at)
    return None


def _next_block(data: bytes, start: int) -> int | None:
    """Position of the first intact chunk that begins a block, from `start` on."""
    return next((at for at in range(-(-start // BLOCK) * BLOCK, len(data), BLOCK) if _stop(data, at) is not None), None)
