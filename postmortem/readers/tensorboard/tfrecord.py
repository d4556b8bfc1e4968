"""Finds the records of a TFRecord file, many at a time, and resynchronises after damage.

A record is a little-endian uint64 length, the masked CRC32C of these 8 bytes, the payload, and the payload's masked
CRC32C (tensorflow/core/lib/io/record_writer.h). The header's own checksum makes it possible to find the next record in
the middle of anything.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from postmortem.readers.shared.damage import Damage, damage_in
from postmortem.readers.tensorboard.crc32c import masked, position_tables, unmask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Run = tuple[NDArray[np.int64], NDArray[np.int64]]

HEADER = 12
OVERHEAD = 16
PIECE = 1 << 20
REGION = 1 << 16
"""Bytes searched for headers at once: they fit in a core's cache."""
LONG = 4096
"""Payloads of at least this length are skipped one at a time, which is cheaper than to search them."""

_LENGTH_TABLES = position_tables(8)
_CRC_OF_ZEROS = np.uint32(0x8C28B28A)  # of 8 bytes


@dataclass(slots=True)
class Batch:
    """n records within `data`, which begins at byte `offset` of the file.

    `start` int64[n] is the offset of each payload in `data`, `length` int64[n] its number of bytes; the checksum after
    it is not verified yet.
    """

    data: bytes
    offset: int
    start: NDArray[np.int64]
    length: NDArray[np.int64]

    def payload(self, i: int) -> bytes | None:
        """The i-th payload, or None if its checksum is wrong."""
        return _payload(self.data, int(self.start[i]), int(self.length[i]))


def batches(stream: BinaryIO, damage: list[Damage]) -> Iterator[Batch]:
    """Yields all records of the file in order; what lies between them is appended to `damage`.

    A record with a wrong payload checksum is still yielded if the next one begins right at its end: its length was
    right, and the caller reports its content.
    """
    data, offset, want = b"", 0, PIECE
    while True:
        piece = stream.read(want)
        final = len(piece) < want
        data += piece
        runs, gaps, resume = _scan(data, final)
        damage.extend(replace(gap, start=offset + gap.start, stop=offset + gap.stop) for gap in gaps)
        for start, length in runs:
            yield Batch(data, offset, start, length)
        if final:
            return
        want = PIECE if resume else len(data)  # no progress: a record, or damage, larger than what was read
        data, offset = data[resume:], offset + resume


def _scan(data: bytes, final: bool) -> tuple[list[Run], list[Damage], int]:
    """Runs of adjacent records in `data`, the damage between them, and where to resume with more data.

    Unless `final`, the last record is left for the next call: only what follows it shows whether its length was right.
    """
    runs: list[Run] = []
    gaps: list[Damage] = []
    pos = 0
    while True:
        start, length, stop = _chain(data, pos)
        ends_here = stop > len(data) - HEADER
        if ends_here and not final:
            resume = int(start[-1]) - HEADER if len(start) else pos
            runs.append((start[:-1], length[:-1]))
            return runs, gaps, resume
        if stop == len(data):
            runs.append((start, length))
            return runs, gaps, stop
        lost, search, cut = stop, stop + 1, ends_here
        if len(start) and (stop > len(data) or _payload(data, int(start[-1]), int(length[-1])) is None):
            lost, search = int(start[-1]) - HEADER, int(start[-1])
            start, length = start[:-1], length[:-1]
        runs.append((start, length))
        found = _next_header(data, search)
        if found is None:
            if final:
                gaps.append(damage_in(data, lost, len(data), cut))
            return runs, gaps, lost
        gaps.append(damage_in(data, lost, found))
        pos = found


def _chain(data: bytes, pos: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Records from `pos` on, each beginning where the one before it ends -> (start, length, end of the last).

    The last one may reach beyond `data`.
    """
    starts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    lengths: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    while (first := _length_at(data, pos)) is not None:
        if 0 < first < LONG:
            heads = _headers(data, pos, pos + REGION)
            length = _lengths(data, heads)
            kept = _linked(heads, heads + length + OVERHEAD)
            heads, length = heads[kept], length[kept]
        else:
            heads, length = np.array([pos]), np.array([min(first, 1 << 62)])
        starts.append(heads + HEADER)
        lengths.append(length)
        pos = int(heads[-1] + length[-1]) + OVERHEAD
    return np.concatenate(starts), np.concatenate(lengths), pos


def _linked(heads: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the headers that a chain of adjacent records reaches; the others lie inside payloads."""
    if np.array_equal(heads[1:], ends[:-1]):
        return np.arange(len(heads))
    following = np.searchsorted(heads, ends)
    reached = [0]
    while (i := int(following[reached[-1]])) < len(heads) and heads[i] == ends[reached[-1]]:
        reached.append(i)
    return np.array(reached)


def _length_at(data: bytes, pos: int) -> int | None:
    """The length in the header at `pos`, or None if there is no valid header."""
    if len(data) - pos < HEADER:
        return None
    length, crc = struct.unpack_from("<QI", data, pos)
    return int(length) if masked(data[pos : pos + 8]) == crc else None


def _payload(data: bytes, start: int, length: int) -> bytes | None:
    payload = data[start : start + length]
    return payload if masked(payload) == int.from_bytes(data[start + length : start + length + 4], "little") else None


def _next_header(data: bytes, pos: int) -> int | None:
    """Position of the first valid header at or after `pos`."""
    for lo in range(pos, len(data), REGION):
        heads = _headers(data, lo, lo + REGION)
        if len(heads):
            return int(heads[0])
    return None


def _headers(data: bytes, start: int, stop: int) -> NDArray[np.int64]:
    """Positions in ``range(start, stop)`` of valid headers, of payloads with 1 to 2**24 - 1 bytes."""
    count = min(stop + HEADER - 1, len(data)) - start
    if count < HEADER:
        return np.empty(0, np.int64)
    b = np.frombuffer(data, np.uint8, count, start)
    zero = b == 0  # the five high bytes of the length
    pair = zero[3:-6] & zero[4:-5]
    at: NDArray[np.int64] = np.flatnonzero(pair[:-2] & pair[2:] & zero[7:-4])
    at = at[(b[at] | b[at + 1] | b[at + 2]) != 0]
    crc = _CRC_OF_ZEROS ^ _LENGTH_TABLES[0][b[at]] ^ _LENGTH_TABLES[1][b[at + 1]] ^ _LENGTH_TABLES[2][b[at + 2]]
    stored = np.zeros(len(at), np.uint32)
    for k in range(4):
        stored |= b[at + 8 + k].astype(np.uint32) << np.uint32(8 * k)
    found: NDArray[np.int64] = at[crc == unmask(stored)] + start
    return found


def _lengths(data: bytes, heads: NDArray[np.int64]) -> NDArray[np.int64]:
    b = np.frombuffer(data, np.uint8)
    return b[heads].astype(np.int64) | b[heads + 1].astype(np.int64) << 8 | b[heads + 2].astype(np.int64) << 16
