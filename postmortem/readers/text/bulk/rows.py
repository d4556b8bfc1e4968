"""The rows of a block as arrays: where they start, their line, and whether the search for events must see them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.own_output import OWN
from postmortem.readers.text.failures.scanner import prefilter
from postmortem.readers.text.lines.blocks import text_of
from postmortem.readers.text.records.tokens import LONGEST_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.readers.text.lines.blocks import Block
    from postmortem.readers.text.lines.own_texts import OwnTexts

_OWN = OWN.encode()
_OWN_WORDS = [np.frombuffer(_OWN, "<u4", 1, offset)[0] for offset in range(4)]
_LONGEST_SHOWN = 1 << 20
"""Bytes of the longest line that is shown whole; of a longer one, each row is cut."""
_VERSIONED = b'{\n  "schema_version": '
_ANSWER = re.compile(rb'^\{\n  "schema_version": \d+,\n(?: [^\n]*+\n)*+\}$', re.MULTILINE)
"""What `--format json` prints."""


class Rows:
    """Rows of a block, in order; a row ends at a line feed, a carriage return or a hole of NULs.

    `start`, `length` (bytes) and `line` are int64[n]; `filled` are the rows that are not empty; `hidden` marks rows
    that the search for events need not see; `redrawn`: some row does not end at a line feed; `own`: rows of which
    postmortem itself wrote the end, which is left out.
    """

    def __init__(self, block: Block, own_texts: OwnTexts) -> None:
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
        self.own = self._leave_out_own(own_texts)
        self.filled = np.flatnonzero(self.length > 0)
        self.hidden = np.zeros(len(end), bool)

    def _leave_out_own(self, texts: OwnTexts) -> int:
        """Ends rows where a line of postmortem begins: at their begin, or after a bar that was not ended."""
        found, at = 0, self.padded.find(_OWN, 0, self.size) if _has_own(self.padded, self.size) else -1
        while at >= 0:
            row = int(np.searchsorted(self.start, at, side="right")) - 1
            end = int(self.start[row] + self.length[row])
            self.length[row] = at - self.start[row]
            found, at = found + 1, self.padded.find(_OWN, end, self.size)
        for answer in _ANSWER.finditer(self.padded, 0, self.size) if self._has_answer() else ():
            first, last = np.searchsorted(self.start, answer.span())
            self.length[first:last] = 0
            found += int(last - first)
        for first, last in texts.spans(self.padded, self.start, self.length):
            found += int(np.count_nonzero(self.length[first:last]))
            self.length[first:last] = 0
        return found

    def _has_answer(self) -> bool:
        """Whether a row is only the brace that opens what `--format json` prints."""
        opens = np.flatnonzero(self.length == 1)
        opens = opens[np.frombuffer(self.padded, np.uint8)[self.start[opens]] == ord("{")]
        return any(self.padded.startswith(_VERSIONED, start) for start in self.start[opens].tolist())

    def bytes(self, i: int) -> bytes:
        """The bytes of row `i`, without its line end."""
        start = int(self.start[i])
        return self.padded[start : start + int(self.length[i])]

    def by_length(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Indices of rows of one length, for each length that is worth a layout; in order."""
        short = self.filled[self.length[self.filled] <= 2048]
        length = self.length[short].astype(np.uint16)
        order = np.argsort(length, kind="stable")
        short, length = short[order], length[order]
        cuts = np.flatnonzero(length[1:] != length[:-1]) + 1
        for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(short)], strict=True):
            if b > a:
                yield int(length[a]), short[a:b]

    def words(self, rows: NDArray[np.intp], length: int) -> NDArray[np.uint64]:
        """The bytes of rows of one length, uint64[n, w] with a spare word; bytes past the row are anything."""
        wide = (length // 8 + 2) * 8
        cells = np.ndarray((len(self.padded) - wide,), f"V{wide}", self.padded, 0, (1,))
        return cells[self.start[rows]].view("<u8").reshape(len(rows), wide // 8)

    def word(self, rows: NDArray[np.intp], column: int) -> NDArray[np.uint64]:
        """The eight bytes of each of these rows from byte ``8 * column`` on, uint64[n]."""
        words = np.ndarray((len(self.padded) - 8 * column - 7,), "<u8", self.padded, 8 * column, (1,))
        return words[self.start[rows]]

    def that_may_matter(self, which: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows that contain something the search for events looks for."""
        if not len(which):
            return which
        first, last = int(which[0]), int(which[-1])
        if last - first == len(which) - 1 and not self.redrawn:
            data = self.padded[int(self.start[first]) : int(self.start[last] + self.length[last]) + 1]
        else:
            data = b"\n".join([*(self.bytes(i) for i in which.tolist()), b""])
        return which[np.array(prefilter().lines_in(data), np.intp)]

    def show_after(self, rows: NDArray[np.intp], near: int) -> None:
        """Unhide everything within `near` bytes after each of these rows."""
        if not len(rows):
            return
        last = np.searchsorted(self.start, self.start[rows] + near, side="right")
        first = np.searchsorted(self.start, self.start[rows] - 256)
        change = np.zeros(len(self.start) + 1, np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, last, -1)
        self.hidden[np.cumsum(change[:-1]) > 0] = False

    def shown(self) -> Iterator[tuple[int, str]]:
        """Lines with their shown rows, joined by carriage returns. Empty lines next to a shown one count as shown."""
        rows = np.flatnonzero(~self.hidden)
        if not len(rows):
            return
        line = self.line[rows]
        cuts = np.flatnonzero(line[1:] != line[:-1]) + 1
        first, last = np.append(0, cuts), np.append(cuts, len(rows)) - 1
        whole = rows[last] - rows[first] == last - first
        whole &= self.start[rows[last]] + self.length[rows[last]] - self.start[rows[first]] < _LONGEST_SHOWN
        goes_on = whole[1:] & whole[:-1] & (rows[first[1:]] == rows[last[:-1]] + 1) & (self.own == 0)
        cuts = np.flatnonzero(~goes_on) + 1
        for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(first)], strict=True):
            mine = rows[first[a] : last[b - 1] + 1]
            end = int(self.start[mine[-1]] + self.length[mine[-1]])
            if whole[a]:
                text = self.padded[int(self.start[mine[0]]) : end]
            else:
                text = b"\r".join(self.bytes(i)[:LONGEST_ROW] for i in mine.tolist())
            if end == self.size and text[-1:] in (b"", b"\n"):  # no line begins there
                text, b = text[:-1], b - 1
            if b > a:
                yield from zip(line[first[a:b]].tolist(), _texts_of(text), strict=True)


def _has_own(data: bytes, size: int) -> bool:
    """Whether the mark of postmortem may be in the first `size` bytes: one of four whole words of it is aligned there,
    which is seen in a third of the time of a search."""
    words = np.frombuffer(data, "<u4", size // 4)
    return any((words == word).any() for word in _OWN_WORDS)


def _texts_of(lines: bytes) -> list[str]:
    """The texts of lines, each in UTF-8 or Latin-1."""
    try:
        return lines.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return [text_of(line) for line in lines.split(b"\n")]
