"""Rows of scalars: the adjacent records that a training loop writes at each step, read as the rows of a matrix.

A loop logs the same tags in the same order at every step. Such a row of records is always the same bytes but for wall
times, digits of the step, values, and the checksums of the payloads. So the row is learned once, record by record
(`RowLayout`); wherever its other bits occur again, one comparison proves framing, header checksums and tags of all
records in many rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from postmortem.readers.tensorboard.beginnings import TRIES, Beginnings
from postmortem.readers.tensorboard.framing import HEADER, OVERHEAD, length_at, payload_at
from postmortem.readers.tensorboard.row_layout import RowLayout
from postmortem.readers.tensorboard.scalar_record import scalar_record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.row_layout import Rows
    from postmortem.readers.tensorboard.scalar_record import ScalarRecord

LONGEST_ROW, LONGEST_RECORD = 1 << 16, 512
MOST_BYTES = 1 << 22
"""Bytes of all layouts together; beyond, all are forgotten and learned again."""
MOST_ALIKE = 16
"""Layouts of rows that begin with the same header, the newest."""
_FILE_VERSION = bytes([3 << 3 | 2])
"""What follows the wall time in the first record of a file: a key of protobuf that no scalar has there."""
CREDIT, PER_MATCH = 128, 16
"""How many records may be learned in a file (and one more for each KiB of it), and how many records found in rows pay
for one more: learning one costs about as much as reading ten without rows."""


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
    beginnings: Beginnings = field(default_factory=Beginnings)

    def opened(self, size: int) -> None:
        """A file of that many bytes is read from now on."""
        self.credit = CREDIT + size // 1024
        self.beginnings.tries = TRIES

    def find(self, data: NDArray[np.uint8], at: int, final: bool) -> Rows | Literal["cut"] | None:
        """Rows that stand in `data` from `at` on, of a known layout or of one that is learned there.

        "cut" if the data, which are not the `final` ones, end inside the first row.
        """
        first = data[at : at + HEADER + 10].tobytes()
        header = first[:HEADER]
        if first[HEADER + 9 :] == _FILE_VERSION:
            return None
        if final and (begun := self.beginnings.find(data, at, header)):
            return begun
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
        self.credit += len(rows.difference) * len(layout.records) // PER_MATCH
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
