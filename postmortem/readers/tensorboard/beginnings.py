"""Beginnings of files: what the files of many short runs have in common, read as one row of records.

The runs of one project log the same rows from the same first step on, and differ in where they end. The cost of finding
and reading rows is by the group, one group for each number of bytes that a step takes; in a short file that is most of
its cost. So the groups of a small file become one layout of all its records, where a second file has them as well. A
shorter file, or one that goes on differently, has the first of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.readers.tensorboard.framing import HEADER
from postmortem.readers.tensorboard.long_row import LongRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from postmortem.readers.tensorboard.row_layout import Rows

TRIES = 3
LONGEST, MOST = 1 << 19, 8
"""Bytes of a beginning, and how many are kept, the newest: their layouts take about six times as much memory."""


class Beginning(NamedTuple):
    """A layout of all rows, and the header of the first; where each row ends in it, in bytes and in records; where the
    second group begins."""

    header: bytes
    layout: LongRow
    ends: NDArray[np.int64]
    records: NDArray[np.int64]
    second: int

    @classmethod
    def of(cls, groups: Sequence[Rows], data: NDArray[np.uint8]) -> Beginning:
        """Of adjacent groups of rows as they stand in `data`."""
        records, sizes, counts = [], list[int](), list[int]()
        for rows in groups:
            k = len(rows.difference)
            records += [*rows.layout.records] * k
            sizes += [rows.layout.size] * k
            counts += [len(rows.layout.records)] * k
        layout = LongRow(records, data[groups[0].at : groups[-1].stop])
        header = data[groups[0].at :][:HEADER].tobytes()
        return cls(header, layout, np.cumsum(sizes), np.cumsum(counts), groups[1].at - groups[0].at)

    def find(self, data: NDArray[np.uint8], at: int) -> Rows | None:
        """What stands of it in `data` from `at` on, in whole rows; None if that is no more than one group of rows."""
        row, alike = self.layout.compared(data, at)
        if alike == self.layout.size:
            return row
        whole = int(np.searchsorted(self.ends, alike, "right"))
        if not whole or self.ends[whole - 1] <= self.second:
            return None
        return self.layout.first(row, int(self.records[whole - 1]))


@dataclass(slots=True)
class Beginnings:
    """The beginnings that are known, and the groups of rows of the last file that had none of them.

    `tries` is set for each file: its first record may have the header of a row, and what stands in the middle of a file
    begins like its first row, but need not be looked up.
    """

    known: list[Beginning] = field(default_factory=list)
    last: list[Rows] = field(default_factory=list)
    tries: int = TRIES

    def find(self, data: NDArray[np.uint8], at: int, header: bytes) -> Rows | None:
        """The rows of a known beginning that stand in `data` from `at` on, where `header` is."""
        alike = [known for known in self.known if known.header == header] if self.tries else []
        self.tries -= bool(alike)
        return next((rows for known in alike if (rows := known.find(data, at))), None)

    def learn(self, groups: Sequence[Rows], data: NDArray[np.uint8]) -> None:
        """Learns the beginning of the file whose rows these are, if the file before it began alike."""
        first = groups[0]
        if used := [known for known in self.known if known.layout.records is first.layout.records]:
            if groups[-1].stop - first.stop > first.layout.size:  # a longer one is worth more
                self.known.remove(used[0])
            return
        adjacent = next((i for i in range(1, len(groups)) if groups[i].at != groups[i - 1].stop), len(groups))
        groups = groups[:adjacent]
        before, self.last = self.last, [rows._replace(difference=rows.difference[:, :0]) for rows in groups]
        if len(groups) < 2 or len(before) < 2 or groups[-1].stop - first.at > LONGEST:
            return
        if all(a.layout is b.layout for a, b in zip(groups[:2], before[:2], strict=True)) and len(
            first.difference
        ) == len(before[0].difference):
            self.known = [Beginning.of(groups, data), *self.known][:MOST]
            self.last = []
