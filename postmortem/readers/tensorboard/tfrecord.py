"""Finds the records of a TFRecord file, many at a time, and resynchronises after damage.

The header's own checksum makes it possible to find the next record in the middle of anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.shared.damage import Damage, damage_in
from postmortem.readers.tensorboard.crc32c import position_tables, unmask
from postmortem.readers.tensorboard.framing import HEADER, OVERHEAD, length_at, payload_at
from postmortem.readers.tensorboard.long_row import LongRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.row_layout import Rows
    from postmortem.readers.tensorboard.rows import RowLayouts

PIECE = 1 << 20
REGION = 1 << 16
"""Bytes searched for headers at once: they fit in a core's cache."""
LONG = 4096
"""Payloads of at least this length are skipped one at a time, which is cheaper than to search them."""
SINGLE = 24
"""So many short records after one another that are in no row are followed by a search for headers."""
PADDING = 16
"""Bytes after the data, so that a few bytes may be read from any place in it."""

_SPARE: list[NDArray[np.uint8]] = []
"""The buffer of the file read last: a new one for each of many small files takes longer than to read them."""
_LENGTH_TABLES = position_tables(8)
_CRC_OF_ZEROS = np.uint32(0x8C28B28A)  # of 8 bytes


@dataclass(slots=True)
class Batch:
    """Records within a piece of the file, which begins at byte `offset` of it.

    `padded` uint8[:] is the piece and `PADDING` more bytes; the next piece overwrites it. `rows` are the records that
    stand in rows of scalars. Of the n others, `start` int64[n] is the offset of each payload in the piece, `length`
    int64[n] its number of bytes. No payload's checksum is verified yet.
    """

    padded: NDArray[np.uint8]
    offset: int
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    rows: list[Rows]

    def payload(self, start: int, length: int) -> NDArray[np.uint8] | None:
        """The payload from `start` on, or None if its checksum is wrong."""
        return payload_at(self.padded[:-PADDING], start, length)


@dataclass(slots=True)
class Chain:
    """Adjacent records: those in `rows`, and the `heads` and `lengths` of the others. `stop` is where they end.

    `open`: the piece may end inside a row that begins at `stop`.
    """

    rows: list[Rows] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    stop: int = 0
    open: bool = False

    def batch(self, padded: NDArray[np.uint8], offset: int) -> Batch:
        start, length = np.array(self.heads, np.int64) + HEADER, np.array(self.lengths, np.int64)
        return Batch(padded, offset, start, length, self.rows)

    def drop_last(self) -> int:
        """Takes out the last record, or the last row; returns where it, or the whole chain, begins."""
        if self.rows and self.rows[-1].stop == self.stop:
            last = self.rows.pop()
            if len(last.difference) > 1:
                self.rows.append(last._replace(difference=last.difference[:-1]))
            self.stop -= last.layout.size
        elif self.heads:
            self.stop = self.heads.pop()
            self.lengths.pop()
        return self.stop

    def split_last_row(self) -> None:
        """Counts the records of the last row, where the chain ends with one, to the others."""
        if not self.rows or self.rows[-1].stop != self.stop:
            return
        last = self.rows[-1]
        layout, begin = last.layout, self.stop - last.layout.size
        kept = layout.last_row if isinstance(layout, LongRow) else 0
        if kept and isinstance(layout, LongRow):
            self.rows[-1] = layout.first(last, kept)
        else:
            self.drop_last()
        self.heads += (layout.start[kept:] - HEADER + begin).tolist()
        self.lengths += layout.length[kept:].tolist()
        self.stop = begin + layout.size


def batches(stream: FileIO, damage: list[Damage], layouts: RowLayouts) -> Iterator[Batch]:
    """Yields all records from the place of the stream on, in order; what lies between them is appended to `damage`.

    A record with a wrong payload checksum is still yielded if the next one begins right at its end: its length was
    right, and the caller reports its content.
    """
    buffer = _SPARE.pop() if _SPARE else np.empty(PIECE + PADDING, np.uint8)
    kept, offset, want = 0, stream.tell(), PIECE
    while True:
        if kept + want > len(buffer) - PADDING:
            buffer = np.concatenate([buffer[:kept], np.empty(want + PADDING, np.uint8)])
        got = _filled(buffer[kept : kept + want].data, stream)
        final = got < want
        size = kept + got
        chains, gaps, resume = _scan(buffer[:size], final, layouts)
        damage.extend(replace(gap, start=offset + gap.start, stop=offset + gap.stop) for gap in gaps)
        for chain in chains:
            yield chain.batch(buffer[: size + PADDING], offset)
        if final:
            if len(buffer) <= PIECE + PADDING:
                _SPARE[:] = [buffer]
            return
        want = PIECE if resume else size  # no progress: a record, or damage, larger than what was read
        kept, offset = size - resume, offset + resume
        buffer[:kept] = buffer[resume:size]


def _filled(buffer: memoryview, stream: FileIO) -> int:
    """How many bytes were read: as many as there is room for, unless the file ends before."""
    got = 0
    while more := stream.readinto(buffer[got:]):
        got += more
    return got


def _scan(data: NDArray[np.uint8], final: bool, layouts: RowLayouts) -> tuple[list[Chain], list[Damage], int]:
    """Chains of adjacent records in `data`, the damage between them, and where to resume with more data.

    Unless `final`, the last record is left for the next call: only what follows it shows whether its length was right.
    """
    chains: list[Chain] = []
    gaps: list[Damage] = []
    pos = 0
    while True:
        chain = _chain(data, pos, final, layouts)
        chains.append(chain)
        if chain.open:
            return chains, gaps, chain.stop
        ends_here = chain.stop > len(data) - HEADER
        if ends_here and not final:
            return chains, gaps, chain.drop_last()
        if chain.stop == len(data):
            return chains, gaps, chain.stop
        lost, cut = chain.stop, ends_here
        search = lost + 1
        chain.split_last_row()
        if chain.heads and (lost > len(data) or _wrong(data, chain)):
            lost = chain.drop_last()
            search = lost + HEADER
        found = _next_header(data, search)
        if found is None:
            if final:
                gaps.append(damage_in(data, lost, len(data), cut))
            return chains, gaps, lost
        gaps.append(damage_in(data, lost, found))
        pos = found


def _wrong(data: NDArray[np.uint8], chain: Chain) -> bool:
    """Whether the checksum of the last record's payload is wrong."""
    return payload_at(data, chain.heads[-1] + HEADER, chain.lengths[-1]) is None


def _chain(data: NDArray[np.uint8], pos: int, final: bool, layouts: RowLayouts) -> Chain:
    """Records from `pos` on, each beginning where the one before it ends. The last one may reach beyond `data`."""
    chain = Chain(stop=pos)
    alone = 0
    while True:
        if len(data) - pos < HEADER:
            return chain
        rows = layouts.find(data, pos, final)
        if rows == "cut":
            chain.open = True
            return chain
        if rows is not None:
            chain.rows.append(rows)
            chain.stop = pos = rows.stop
            alone = 0
            continue
        first = length_at(data, pos)
        if first is None:
            return chain
        if alone >= SINGLE and 0 < first < LONG:
            heads = _headers(data, pos, pos + REGION)
            length = _lengths(data, heads)
            kept = _linked(heads, heads + length + OVERHEAD)
            chain.heads += heads[kept].tolist()
            chain.lengths += length[kept].tolist()
        else:
            chain.heads.append(pos)
            chain.lengths.append(min(first, 1 << 62))
            alone += 0 < first < LONG
        chain.stop = pos = chain.heads[-1] + chain.lengths[-1] + OVERHEAD


def _linked(heads: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the headers that a chain of adjacent records reaches; the others lie inside payloads."""
    if np.array_equal(heads[1:], ends[:-1]):
        return np.arange(len(heads))
    following = np.searchsorted(heads, ends)
    reached = [0]
    while (i := int(following[reached[-1]])) < len(heads) and heads[i] == ends[reached[-1]]:
        reached.append(i)
    return np.array(reached)


def _next_header(data: NDArray[np.uint8], pos: int) -> int | None:
    """Position of the first valid header at or after `pos`."""
    for lo in range(pos, len(data), REGION):
        heads = _headers(data, lo, lo + REGION)
        if len(heads):
            return int(heads[0])
    return None


def _headers(data: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.int64]:
    """Positions in ``range(start, stop)`` of valid headers, of payloads with 1 to 2**24 - 1 bytes."""
    count = min(stop + HEADER - 1, len(data)) - start
    if count < HEADER:
        return np.empty(0, np.int64)
    b = data[start : start + count]
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


def _lengths(data: NDArray[np.uint8], heads: NDArray[np.int64]) -> NDArray[np.int64]:
    low, middle, high = (data[heads + k].astype(np.int64) for k in range(3))
    return low | middle << 8 | high << 16
