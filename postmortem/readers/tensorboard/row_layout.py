"""The layout of one row of records: what is the same in each, and where the rest of it stands.

The payload checksums of many rows are proved by one CRC. CRC32C is linear: a register that starts with zero and is
fed the difference (exclusive or) of two messages holds the difference of their checksums, and zeros leave a register
of zero as it is. So in the difference of a row to its layout, with the differences of the checksums in place of the
stored ones, each record with a right checksum takes the register from zero to zero. A wrong one leaves something else,
which only a second error could cancel, with a probability of 2**-32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import numpy as np

from postmortem.core.distinct import distinct
from postmortem.readers.tensorboard.crc32c import unmask
from postmortem.readers.tensorboard.event_proto import DTYPES, widen
from postmortem.readers.tensorboard.framing import HEADER, OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.scalar_record import ScalarRecord

BLOCK = 1 << 18
"""Bytes that are compared at once: they fit in a core's cache."""
_ZERO = 0xFFFFFFFF  # what a CRC register of zero is in terms of google_crc32c, which inverts it before and after


class Rows(NamedTuple):
    """k adjacent rows of one layout, from `at` on. `difference` uint8[k, width] is what they differ in from it; of a
    `LongRow` it is the row itself, where it stands in the data."""

    layout: RowLayout
    at: int
    difference: NDArray[np.uint8]

    @property
    def stop(self) -> int:
        """Where the last row ends."""
        return self.at + len(self.difference) * self.layout.size


class RowFields(NamedTuple):
    """Fields of the n records of k rows, [k, n] each; `intact`: whether the checksum is right, None if all are."""

    step: NDArray[np.int64]
    value: NDArray[np.float64]
    wall_time: NDArray[np.float64]
    intact: NDArray[np.bool_] | None


class RowLayout:
    """n adjacent records of which everything is known but wall times, steps' digits, values and payload checksums.

    `size` is the number of bytes of a row, `start` and `length` int64[n] say where the payloads are in it. Record j is
    of the tag whose code is `tag[j]` in `codes`; `plugins` are by tag.
    """

    def __init__(self, records: Sequence[ScalarRecord], data: NDArray[np.uint8]) -> None:
        """Of `records` as they stand in `data`, uint8[size]."""
        self.size = len(data)
        self.records = records
        self._alone = 0
        self.codes = {tag: i for i, tag in enumerate(dict.fromkeys(record.tag for record in records))}
        self.tag = np.array([self.codes[record.tag] for record in records], np.int32)
        self.plugins = {record.tag: record.plugin.decode("utf-8", "replace") for record in records if record.plugin}
        self.length = np.array([record.length for record in records])
        self.start = np.cumsum(self.length + OVERHEAD) - self.length - OVERHEAD + HEADER
        wall_time, step, step_bytes, value, dtype = np.array([record.offsets for record in records]).T
        self._wall_time, self._crc = self.start + wall_time, self.start + self.length
        self._crc_bytes = _spans(self._crc, 4)
        self._digits = {size: (of, _spans((self.start + step)[of], size)) for size, of in _alike(step_bytes) if size}
        self._value = {
            kind: (of, _spans((self.start + value)[of], np.dtype(DTYPES[kind][0]).itemsize))
            for kind, of in _alike(dtype)
        }
        fixed = np.full(-(-self.size // 8) * 8, 0xFF, np.uint8)
        fixed[self.size :] = 0
        for _, digits in self._digits.values():
            fixed[digits] = 0x80
        for _, value_bytes in self._value.values():
            fixed[value_bytes] = 0
        fixed[_spans(self._wall_time, 8)] = fixed[self._crc_bytes] = 0
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
        """uint8[k, n] -> uint8[k, width]: exclusive or with the first n bytes of the layout, filled up with zeros."""
        size = rows.shape[1]
        difference = np.empty((len(rows), -(-size // 8) * 8), np.uint8)
        np.bitwise_xor(rows, self.bytes[:size], out=difference[:, :size])
        difference[:, size:] = 0
        return difference

    def fields(self, difference: NDArray[np.uint8]) -> RowFields:
        """What the rows hold. Uses up `difference`: its bytes of checksums are changed."""
        digits = {size: difference.take(at, axis=1) for size, (_, at) in self._digits.items()}
        step = self._decoded(len(difference), digits)
        value, wall_time = self._values(difference), windows(difference, "<f8")[:, self._wall_time]
        stored = difference.take(self._crc_bytes, axis=1).view("<u4")
        windows(difference, "<u4")[:, self._crc] = unmask(stored) ^ self._crc_of_none
        return RowFields(step, value, wall_time, self._intact(difference))

    def _decoded(self, k: int, digits: dict[int, NDArray[np.uint8]]) -> NDArray[np.int64]:
        """int64[k, n]: the steps of k rows, whose digits are given by their number in a record."""
        step = np.zeros((k, len(self.tag)), np.int64)
        for size, found in digits.items():
            step[:, self._digits[size][0]] = _steps(found.reshape(k, -1, size))
        return step

    def _values(self, rows: NDArray[np.uint8]) -> NDArray[np.float64]:
        """uint8[k, width] -> float64[k, n]: the values in rows, or in their difference to the layout."""
        kinds = [
            (of, widen(rows.take(at, axis=1).view(DTYPES[dtype][0]), dtype)) for dtype, (of, at) in self._value.items()
        ]
        value: NDArray[np.float64] = np.empty((len(rows), len(self.tag))) if len(kinds) > 1 else kinds[0][1]
        if len(kinds) == 1:
            return value
        for of, found in kinds:
            value[:, of] = found
        return value

    def _intact(self, difference: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
        """bool[k, n]: which records have a right checksum, by a difference with those of the checksums; None if all."""
        damaged = _wrong(difference, np.arange(len(difference) + 1))
        if not damaged:
            return None
        intact = np.ones((len(difference), len(self.tag)), bool)
        bounds = np.append(self.start - HEADER, self.size)
        for i in damaged:
            intact[i, _wrong(difference[i], bounds)] = False
        return intact


def _wrong(difference: NDArray[np.uint8], bounds: NDArray[np.int64]) -> list[int]:
    """The parts `difference[bounds[i]:bounds[i + 1]]` that hold a wrong checksum, by halving what holds one."""
    if google_crc32c.extend(_ZERO, difference[bounds[0] : bounds[-1]]) == _ZERO:
        return []
    if len(bounds) == 2:
        return [0]
    middle = len(bounds) // 2
    return _wrong(difference, bounds[: middle + 1]) + [middle + i for i in _wrong(difference, bounds[middle:])]


def _steps(digits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """uint8[k, n, bytes] of varints without their uppermost bits -> int64[k, n], or int64[k, 1] if a row has one."""
    same = digits.shape[1] > 1 and len(digits) > 1 and bool((digits == digits[:, :1]).all())
    digits = digits[:, :1] if same else digits
    step = digits[:, :, 0].astype(np.uint64)
    for i in range(1, digits.shape[2]):
        step |= digits[:, :, i].astype(np.uint64) << np.uint64(7 * i)
    return step.view(np.int64)


def windows(rows: NDArray[np.uint8], kind: str) -> NDArray[Any]:
    """What stands from each byte of the rows on as numbers of that kind, [k, n]. To be indexed, nothing is copied."""
    return np.ndarray((len(rows), rows.shape[1] - np.dtype(kind).itemsize + 1), kind, rows, 0, rows.strides)


def _spans(start: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The places of `size` bytes from each start on."""
    return np.add.outer(start, np.arange(size)).ravel()


def _alike(kinds: NDArray[np.int64]) -> list[tuple[int, Any]]:
    """Each kind and the indices that are of it; a slice, which is faster, where they are adjacent."""
    return [(int(kind), _adjacent(np.flatnonzero(kinds == kind))) for kind in distinct(kinds)]


def _adjacent(of: NDArray[np.int64]) -> Any:
    return slice(int(of[0]), int(of[-1]) + 1) if of[-1] - of[0] + 1 == len(of) else of
