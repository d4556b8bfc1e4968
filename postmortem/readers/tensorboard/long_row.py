"""One long row: all records of a short file, as other files of the project begin with them.

Such a row occurs once in a file. So it is read where it stands, without a copy: its stored checksums are replaced by
what they are checksums of, and then one CRC of the whole row has to be that of the layout, for the reason that is given
in `row_layout`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from postmortem.readers.tensorboard.crc32c import unmask
from postmortem.readers.tensorboard.framing import HEADER, OVERHEAD
from postmortem.readers.tensorboard.row_layout import RowFields, RowLayout, Rows, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.scalar_record import ScalarRecord


class LongRow(RowLayout):
    """A layout of a row that occurs once. Its `Rows` hold the row itself, in the data that it was found in."""

    def __init__(self, records: Sequence[ScalarRecord], data: NDArray[np.uint8]) -> None:
        """Of `records` as they stand in `data`, uint8[size]."""
        super().__init__(records, data)
        self._step: NDArray[np.int64] | None = None
        self._whole = self.bytes.copy()
        windows(self._whole[None], "<u4")[0, self._crc] = self._crc_of_none
        self._crc_of_whole = google_crc32c.value(self._whole)
        self._words = _filled_up(self.bytes)
        digits = {size: data.take(at) for size, (_, at) in self._digits.items()}
        same = copy.copy(self)
        same._step = self._decoded(1, {size: found & np.uint8(0x7F) for size, found in digits.items()})
        same._fixed, bits = self._fixed.copy(), self.bytes.copy()
        for size, (_, at) in self._digits.items():
            same._fixed.view(np.uint8)[at], bits[at] = 0xFF, digits[size]
        same._words = _filled_up(bits)
        self._of_same_steps = same

    @property
    def last_row(self) -> int:
        """The first of the records at the end that are of different tags."""
        seen = set()
        for i in reversed(range(len(self.tag))):
            if self.tag[i] in seen:
                return i + 1
            seen.add(self.tag[i])
        return 0

    def first(self, rows: Rows, n: int) -> Rows:
        """The first n records of the row."""
        part = copy.copy(self)
        part.records = self.records[:n]
        part.tag, part.length, part.start = self.tag[:n], self.length[:n], self.start[:n]
        part.size = int(part.start[-1] + part.length[-1]) + OVERHEAD - HEADER
        part._wall_time, part._crc = self._wall_time[:n], self._crc[:n]
        part._step = self._step[:, :n] if self._step is not None else None
        part._crc_bytes = self._crc_bytes[: 4 * n]
        part._digits = {size: _first(n, *group) for size, group in self._digits.items()}
        part._value = {kind: _first(n, *group) for kind, group in self._value.items()}
        part.bytes, part._whole = self.bytes[: part.size], self._whole[: part.size]
        part._crc_of_whole = google_crc32c.value(part._whole)
        return Rows(part, rows.at, rows.difference[:, : part.size])

    def compared(self, data: NDArray[np.uint8], at: int) -> tuple[Rows, int]:
        """A row from `at` on, or as much of one as there is, and how many bytes at its beginning are of this layout."""
        row = data[None, at : at + self.size]
        alike = self._of_same_steps._alike(row[0])
        if alike == row.size:
            return Rows(self._of_same_steps, at, row), alike
        return Rows(self, at, row), self._alike(row[0])

    def _alike(self, row: NDArray[np.uint8]) -> int:
        """How many bytes at the beginning of a row are of this layout, its free bits apart."""
        kept = np.empty(-(-row.size // 8), np.uint64)
        kept[-1] = 0
        np.bitwise_and(row, self._fixed.view(np.uint8)[: row.size], out=kept.view(np.uint8)[: row.size])
        other = kept != self._words[: len(kept)]
        if not other.any():
            return row.size
        word = int(other.argmax())
        found, expected = (words[word : word + 1].view(np.uint8) for words in (kept, self._words))
        return min(row.size, 8 * word + int((found != expected).argmax()))

    def fields(self, difference: NDArray[np.uint8]) -> RowFields:
        """What the row holds. Its bytes of checksums are changed, unless one is wrong."""
        row = difference
        crc = windows(row, "<u4")[0]
        stored = crc[self._crc]
        crc[self._crc] = unmask(stored)
        intact = None
        if google_crc32c.value(row[0]) != self._crc_of_whole:
            intact = self._intact(row ^ self._whole)
            crc[self._crc] = stored
        wall_time = windows(row, "<f8")[0][self._wall_time][None]  # half a dozen microseconds less than of two axes
        return RowFields(self._steps(row), self._values(row), wall_time, intact)

    def _steps(self, row: NDArray[np.uint8]) -> NDArray[np.int64]:
        if self._step is not None:
            return self._step.copy()
        return self._decoded(1, {size: row.take(at) & np.uint8(0x7F) for size, (_, at) in self._digits.items()})


def _filled_up(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The bytes as words, with zeros after them."""
    words = np.zeros(-(-len(data) // 8), np.uint64)
    words.view(np.uint8)[: len(data)] = data
    return words


def _first(n: int, of: Any, at: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """Of the indices `of` and the places of their bytes, as many for each, those below n."""
    if isinstance(of, slice):
        kept, count = max(0, min(of.stop, n) - of.start), of.stop - of.start
        return slice(of.start, of.start + kept), at[: kept * len(at) // max(count, 1)]
    kept = int(np.searchsorted(of, n))
    return of[:kept], at[: kept * len(at) // len(of)]
