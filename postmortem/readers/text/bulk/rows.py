"""The rows of a block as arrays: where they start, which line they are on, what of them the search for events must see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.readers.text.failures.scanner import prefilter
from postmortem.readers.text.lines.blocks import text_of
from postmortem.readers.text.records.miner import LONGEST_ROW
from postmortem.readers.text.steps.row_store import FIELDS, ROW, Cells, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from postmortem.readers.text.lines.blocks import Block
    from postmortem.readers.text.steps.row_store import Track


class Rows:
    """Rows of a block, in order; a row ends at a line feed, a carriage return or a hole of NULs.

    `start`, `length` (bytes) and `line` are int64[n]; `filled` are the rows that are not empty; `hidden` marks rows that the
    search for events need not see; `redrawn`: some end otherwise than by a line feed.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.size = block.size
        self.padded = block.data
        end = block.end
        self.start = np.empty(len(end), np.int64)
        self.start[:1] = 0
        self.start[1:] = end[:-1] + 1
        self.length = end - self.start
        feed = np.frombuffer(block.data, np.uint8)[end] == 10
        self.redrawn = not feed.all()
        self.line = np.empty(len(end), np.int64)
        self.line[:1] = block.first_line
        np.cumsum(feed[:-1], out=self.line[1:])
        self.line[1:] += block.first_line
        self.filled = np.flatnonzero(self.length > 0)
        self.hidden = np.zeros(len(end), bool)

    def bytes(self, i: int) -> bytes:
        """The bytes of row `i`, without its line end."""
        start = int(self.start[i])
        return self.padded[start : start + int(self.length[i])]

    def by_length(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Rows of one length that is worth a layout, length by length, each in order."""
        short = self.filled[self.length[self.filled] <= 2048]
        length = self.length[short].astype(np.uint16)
        order = np.argsort(length, kind="stable")
        short, length = short[order], length[order]
        cuts = np.flatnonzero(length[1:] != length[:-1]) + 1
        for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(short)], strict=True):
            if b > a:
                yield int(length[a]), short[a:b]

    def words(self, rows: NDArray[np.intp], length: int) -> NDArray[np.uint64]:
        """The bytes of rows of one length, uint64[n, w] with at least one spare word; what is behind the row is undefined."""
        wide = (length // 8 + 2) * 8
        cells = np.ndarray((len(self.padded) - wide,), f"V{wide}", self.padded, 0, (1,))
        return cells[self.start[rows]].view("<u8").reshape(len(rows), wide // 8)

    def that_may_matter(self, which: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of the rows that hold something the search for events looks for."""
        if not len(which):
            return which
        first, last = int(which[0]), int(which[-1])
        if last - first == len(which) - 1 and not self.redrawn:
            data = self.padded[int(self.start[first]) : int(self.start[last] + self.length[last]) + 1]
        else:
            data = b"\n".join([*(self.bytes(i) for i in which.tolist()), b""])
        return which[np.array(prefilter().lines_in(data), np.intp)]

    def show_after(self, rows: NDArray[np.intp], near: int) -> None:
        """Shows everything within `near` bytes behind each of these rows."""
        if not len(rows):
            return
        last = np.searchsorted(self.start, self.start[rows] + near, side="right")
        first = np.searchsorted(self.start, self.start[rows] - 256)
        change = np.zeros(len(self.start) + 1, np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, last, -1)
        self.hidden[np.cumsum(change[:-1]) > 0] = False

    def shown(self) -> Iterator[tuple[int, str]]:
        """Lines with their shown rows, carriage returns between them; empty lines next to a shown one count as shown."""
        rows = np.flatnonzero(~self.hidden)
        if not len(rows):
            return
        line = self.line[rows]
        cuts = np.flatnonzero(line[1:] != line[:-1]) + 1
        for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
            first, last = int(rows[a]), int(rows[b - 1])
            if last - first == b - 1 - a and self.start[last] + self.length[last] - self.start[first] < 1 << 20:
                text = self.padded[int(self.start[first]) : int(self.start[last] + self.length[last])]
            else:
                text = b"\r".join(self.bytes(int(i))[:LONGEST_ROW] for i in rows[a:b])
            if int(self.start[last] + self.length[last]) < self.size or text:
                yield int(line[a]), text_of(text)


class Ordered:
    """Records of a block whose rows are on the lines int64[n], put in by groups and handed out in the order of their rows."""

    def __init__(self, line: NDArray[np.int64]) -> None:
        self.line = line
        self.n = len(line)
        self.groups: list[tuple[NDArray[np.intp], dict[str, Any], NDArray[np.int32], list[Any]]] = []
        self._done: list[tuple[NDArray[np.intp], NDArray[Any], NDArray[np.int32], NDArray[np.float64]]] = []
        self._single: list[tuple[int, Any]] = []
        self._codes: list[int] = []
        self._values: list[float] = []

    def put(self, at: NDArray[np.intp], rows: dict[str, Any], codes: NDArray[np.int32], values: list[Any]) -> None:
        """n records of the same k tags: fields of `ROW` (but for the line) and k values, each an array of n or one for all; codes int32[k]."""
        self.groups.append((at, rows, codes, values))

    def add(self, at: int, row: Any, codes: Sequence[int], values: Sequence[float]) -> None:
        """One record; those of one row are added in their order."""
        self._single.append((at, row))
        self._codes += codes
        self._values += values

    def add_all(self, at: NDArray[np.intp], rows: NDArray[Any], codes: NDArray[np.int32], values: NDArray[np.float64]) -> None:
        """Records of any tags, their values behind one another."""
        self._flush()
        self._done.append((at, rows, codes, values))

    def _flush(self) -> None:
        at = np.array([i for i, _ in self._single], np.intp)
        rows = np.array([tuple(r) for _, r in self._single], ROW)
        self._done.append((at, rows, np.array(self._codes, np.int32), np.array(self._values, np.float64)))
        self._single, self._codes, self._values = [], [], []

    def into(self, track: Track) -> None:
        """Puts all records at the end of the track."""
        self._flush()
        at, rows, codes, values = (np.concatenate(part) for part in zip(*self._done, strict=True))
        if (at[1:] < at[:-1]).any():
            order = np.argsort(at, kind="stable")
            which = Cells(rows["count"]).of(order)
            at, rows, codes, values = at[order], rows[order], codes[which], values[which]
        counts = rows["count"].astype(np.int64)
        n_records, n_values = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        if len(at):
            n_records += np.bincount(at, minlength=self.n)
            n_values += np.bincount(at, weights=counts, minlength=self.n).astype(np.int64)
        for group, _, tags, _ in self.groups:
            n_records[group] = 1
            n_values[group] = len(tags)
        record_at, value_at = np.cumsum(n_records), np.cumsum(n_values)
        size = int(record_at[-1]) if self.n else 0
        all_codes, numbers = track.room(int(value_at[-1]) if self.n else 0)
        record_at -= n_records
        value_at -= n_values
        first = np.searchsorted(at, at)
        single = record_at[at] + np.arange(len(at)) - first
        places = [record_at[group] for group, *_ in self.groups]
        track.column("line", size)[:] = np.repeat(self.line, n_records)
        for name in FIELDS[1:]:
            parts = [(where, found[name]) for where, (_, found, *_) in zip(places, self.groups, strict=True)]
            if len(at):
                parts.append((single, rows[name]))
            _put(track, name, size, parts)
        for group, _, tags, cells in self.groups:
            where = value_at[group]
            for tag, cell in zip(tags.tolist(), cells, strict=True):
                all_codes[where] = tag
                numbers[where] = cell
                where += 1
        if len(at):
            before = np.cumsum(counts) - counts
            owner = np.repeat(np.arange(len(at)), counts)
            where = value_at[at][owner] + np.arange(len(owner)) - before[first][owner]
            all_codes[where] = codes
            numbers[where] = values


def _put(track: Track, name: str, size: int, parts: list[tuple[NDArray[np.intp], Any]]) -> None:
    """Puts parts of a column, each (where, its cells or the number that all of them hold), into the next `size` cells."""
    if not parts:
        return
    usual = max((len(where), i) for i, (where, _) in enumerate(parts))[1]
    common = parts[usual][1]
    if isinstance(common, np.ndarray):
        common = common.flat[0]
    rest = [(where, cells) for where, cells in parts if isinstance(cells, np.ndarray) or not same(cells, common)]
    if all(isinstance(cells, np.ndarray) and ((cells == common) | ((cells != cells) & (common != common))).all() for _, cells in rest):
        track.fill(name, size, common)
        return
    column = track.column(name, size)
    if len(rest) < len(parts):
        column[:] = common
    for where, cells in rest:
        column[where] = cells
