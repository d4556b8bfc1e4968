"""Rows of scalars: the adjacent records that a training loop writes at each step, read as the rows of a matrix.

A loop logs the same tags in the same order at every step. Such a row of records is always the same bytes but for wall
times, digits of the step, values, and the checksums of the payloads. So the row is learned once, record by record
(`RowLayout`); wherever its other bits occur again, one comparison proves framing, header checksums and tags of all
records in many rows.

The payload checksums of many rows are proved by one CRC. CRC32C is linear: a register that starts with zero and is
fed the difference (exclusive or) of two messages holds the difference of their checksums, and zeros leave a register
of zero as it is. So in the difference of a row to its layout, with the differences of the checksums in place of the
stored ones, each record with a right checksum takes the register from zero to zero. A wrong one leaves something else,
which only a second error could cancel, with a probability of 2**-32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import google_crc32c
import numpy as np

from postmortem.readers.tensorboard.crc32c import unmask
from postmortem.readers.tensorboard.event_proto import DTYPES, widen
from postmortem.readers.tensorboard.framing import HEADER, OVERHEAD, length_at, payload_at
from postmortem.readers.tensorboard.scalar_record import scalar_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.scalar_record import ScalarRecord

BLOCK = 1 << 18
"""Bytes that are compared at once: they fit in a core's cache."""
LONGEST_ROW, LONGEST_RECORD = 1 << 16, 512
MOST_BYTES = 1 << 22
"""Bytes of all layouts together; beyond, all are forgotten and learned again."""
MOST_ALIKE = 16
"""Layouts of rows that begin with the same header, the newest."""
CREDIT, PER_MATCH = 128, 16
"""How many records may be learned in a file (and one more for each KiB of it), and how many records found in rows pay
for one more: learning one costs about as much as reading ten without rows."""
_ZERO = 0xFFFFFFFF  # what a CRC register of zero is in terms of google_crc32c, which inverts it before and after


class Rows(NamedTuple):
    """k adjacent rows of one layout, from `at` on. `difference` uint8[k, width] is what they differ in from it."""

    layout: RowLayout
    at: int
    difference: NDArray[np.uint8]

    @property
    def stop(self) -> int:
        """Where the last row ends."""
        return self.at + len(self.difference) * self.layout.size


class RowFields(NamedTuple):
    """Fields of the n records of k rows, [k, n] each, and bool[k]: whether all checksums of a row are right."""

    step: NDArray[np.int64]
    value: NDArray[np.float64]
    wall_time: NDArray[np.float64]
    intact: NDArray[np.bool_]


class RowLayout:
    """n adjacent records of which everything is known but wall times, steps' digits, values and payload checksums.

    `size` is the number of bytes of a row, `start` and `length` int64[n] say where the payloads are in it; `tags` and
    `plugins` (by tag) belong to the records.
    """

    def __init__(self, records: Sequence[ScalarRecord], data: NDArray[np.uint8]) -> None:
        """Of `records` as they stand in `data`, uint8[size]."""
        self.size = len(data)
        self._alone = 0
        self.tags = [record.tag for record in records]
        self.plugins = {record.tag: record.plugin.decode("utf-8", "replace") for record in records if record.plugin}
        self.length = np.array([record.length for record in records])
        self.start = np.cumsum(self.length + OVERHEAD) - self.length - OVERHEAD + HEADER
        fixed = np.full(-(-self.size // 8) * 8, 0xFF, np.uint8)
        fixed[self.size :] = 0
        wall_time, digits, self._values = [], [], dict[int, list[int]]()
        for j, (at, record) in enumerate(zip(self.start.tolist(), records, strict=True)):
            offsets = record.offsets
            wall_time.append(np.arange(8) + at + offsets.wall_time)
            digits.append(np.arange(offsets.step_bytes) + at + offsets.step)
            self._values.setdefault(offsets.dtype, []).append(j)
        self._wall_time, self._digits = np.concatenate(wall_time), np.concatenate(digits)
        self._value = {
            dtype: np.concatenate([np.arange(_size(dtype)) + self.start[j] + records[j].offsets.value for j in of])
            for dtype, of in self._values.items()
        }
        self._crc = np.add.outer(self.start + self.length, np.arange(4)).ravel()
        fixed[self._digits] = 0x80
        for free in (self._wall_time, self._crc, *self._value.values()):
            fixed[free] = 0
        self._fixed = fixed.view(np.uint64)
        self.bytes = data & fixed[: self.size]
        self._crc_of_none = np.array(
            [google_crc32c.value(self.bytes[a : a + n]) for a, n in zip(self.start, self.length, strict=True)], "<u4"
        )

    def matches(self, data: NDArray[np.uint8], at: int) -> bool:
        """Whether a row of this layout stands at `at`, or as much of one as there is before the data end."""
        row = data[at : at + self.size]
        return not ((row ^ self.bytes[: len(row)]) & self._fixed.view(np.uint8)[: len(row)]).any()

    def find(self, data: NDArray[np.uint8], at: int) -> Rows:
        """The rows of this layout that stand in `data` from `at` on."""
        blocks = []
        pos, most = at, max(1, BLOCK // 4 // self.size)
        while count := min((len(data) - pos) // self.size, most):
            block = self._difference(data[pos : pos + count * self.size].reshape(count, self.size))
            words = block.view(np.uint64)
            if (np.bitwise_or.reduce(words, axis=0) & self._fixed).any():
                block = block[: int(np.argmax((words & self._fixed).any(axis=1)))]
            blocks.append(block)
            pos += len(block) * self.size
            if len(block) < count:
                break
            most = max(1, BLOCK // self.size)
        return Rows(self, at, blocks[0] if len(blocks) == 1 else np.concatenate(blocks))

    def alone_again(self) -> bool:
        """Counts that one row was found and no more; whether to see now if it is the beginning of a longer one.

        The layout may be of another run with fewer tags; but it may as well be of a row that is always alone.
        """
        self._alone += 1
        return self._alone.bit_count() == 1

    def _difference(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8[k, size] -> uint8[k, width]: exclusive or with the layout, filled up with zeros to whole words."""
        difference = np.empty((len(rows), self._fixed.nbytes), np.uint8)
        np.bitwise_xor(rows, self.bytes, out=difference[:, : self.size])
        difference[:, self.size :] = 0
        return difference

    def fields(self, difference: NDArray[np.uint8]) -> RowFields:
        """What the rows hold. Uses up `difference`: its bytes of checksums are changed."""
        k, n = len(difference), len(self.tags)
        wall_time = difference.take(self._wall_time, axis=1).view("<f8")
        digits = difference.take(self._digits, axis=1).reshape(k, n, -1)
        value = np.empty((k, n))
        for dtype, of in self._values.items():
            numbers = difference.take(self._value[dtype], axis=1).view(DTYPES[dtype][0])
            value[:, of] = widen(numbers, dtype)
        crc = unmask(difference.take(self._crc, axis=1).view("<u4")) ^ self._crc_of_none
        difference[:, self._crc] = crc.view(np.uint8)
        intact = np.ones(k, bool)
        _mark_wrong(difference, intact)
        return RowFields(_steps(digits), value, wall_time, intact)


def _mark_wrong(difference: NDArray[np.uint8], intact: NDArray[np.bool_]) -> None:
    """Sets `intact` of the rows with a wrong checksum to False, by halving what holds one."""
    if google_crc32c.extend(_ZERO, difference) == _ZERO:
        return
    if len(difference) == 1:
        intact[:] = False
        return
    middle = len(difference) // 2
    _mark_wrong(difference[:middle], intact[:middle])
    _mark_wrong(difference[middle:], intact[middle:])


def _steps(digits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """uint8[k, n, bytes] of varints without their uppermost bits -> int64[k, n]."""
    n, size = digits.shape[1:]
    same = n > 1 and bool((digits == digits[:, :1]).all())
    digits = digits[:, :1] if same else digits
    step = np.zeros(digits.shape[:2], np.uint64)
    for i in range(size):
        step |= digits[:, :, i].astype(np.uint64) << np.uint64(7 * i)
    return np.repeat(step, n, axis=1).view(np.int64) if same else step.view(np.int64)


def _size(dtype: int) -> int:
    return np.dtype(DTYPES[dtype][0]).itemsize


def _record_at(data: NDArray[np.uint8], pos: int) -> ScalarRecord | None:
    """The record at `pos`, where it is an intact scalar of the usual length."""
    length = length_at(data, pos)
    if length is None or not 0 < length < LONGEST_RECORD:
        return None
    payload = payload_at(data, pos + HEADER, length)
    return scalar_record(payload.tobytes()) if payload is not None else None


@dataclass(slots=True)
class RowLayouts:
    """The layouts learned so far, by the first header of their rows; those of one file serve the next."""

    of_header: dict[bytes, list[RowLayout]]
    size: int = 0
    credit: int = CREDIT

    def find(self, data: NDArray[np.uint8], at: int, final: bool) -> Rows | Literal["cut"] | None:
        """Rows that stand in `data` from `at` on, of a known layout or of one that is learned there.

        "cut" if the data, which are not the `final` ones, end inside the first row.
        """
        header = data[at : at + HEADER].tobytes()
        known = self.of_header.get(header, [])
        layout = next((layout for layout in known if layout.matches(data, at)), None)
        if layout is None and 0 < int.from_bytes(header[:8], "little") < LONGEST_RECORD:
            stop, records = self._row(data, at)
            if not final and stop + LONGEST_RECORD > len(data):
                return "cut"
            if records:
                layout = self._learned(header, RowLayout(records, data[at:stop]))
        if layout is None or at + layout.size > len(data):
            return None if final or layout is None else "cut"
        rows = layout.find(data, at)
        if len(rows.difference) == 1 and layout.alone_again():
            stop, records = self._row(data, at)
            if stop > rows.stop and stop + LONGEST_RECORD <= len(data):
                rows = self._learned(header, RowLayout(records, data[at:stop])).find(data, at)
        self.credit += len(rows.difference) * len(layout.tags) // PER_MATCH
        return rows

    def _row(self, data: NDArray[np.uint8], at: int) -> tuple[int, list[ScalarRecord]]:
        """The row at `at` and where it ends: the scalars of different tags and of one step that follow one another."""
        records: list[ScalarRecord] = []
        tags = set()
        pos = at
        while self.credit > 0 and pos - at < LONGEST_ROW:
            record = _record_at(data, pos)
            self.credit -= 1
            if record is None or record.tag in tags or (records and record.step != records[0].step):
                break
            records.append(record)
            tags.add(record.tag)
            pos += record.length + OVERHEAD
        return pos, records

    def _learned(self, header: bytes, layout: RowLayout) -> RowLayout:
        if self.size > MOST_BYTES:
            self.of_header.clear()
            self.size = 0
        self.size += layout.size
        same = [layout, *self.of_header.get(header, [])][:MOST_ALIKE]
        self.of_header[header] = sorted(same, key=lambda layout: layout.size, reverse=True)
        return layout
