"""Bytes of a log as blocks of rows: decoded, without terminal control, redrawn lines as rows of their own.

A file is read in blocks of whole lines. Within a block a row ends at a line feed or a carriage return; line
numbers count line feeds only.
"""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.model import Problem
from postmortem.core.progress import progressed
from postmortem.readers.shared.decode import FOUR_NULS, leading_nul_problem, leading_nuls, nul_problem, wide_encoding
from postmortem.readers.shared.open_end import CUT, NO_END, NOT_USED, last_line, without_last_number
from postmortem.readers.text.lines.escapes import ESC, ESCAPES, without_colours, without_escapes
from postmortem.readers.text.lines.json_envelopes import content_key, unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

BLOCK = 4 << 20
_SPARE = b"\n" * 4096
"""Appended to a block: whole words are read past the end of a row, and an unterminated last line ends here."""
_PIECE = 1 << 18
"""Bytes processed at a time, so that intermediate arrays stay in the cache."""
_HEAD = 1 << 16
"""Bytes at the start of a file from which its encoding is detected, and whether its lines are wrapped in JSON."""
LONGEST_LINE = 64 << 20
"""An unterminated line is cut here, so that memory stays bounded."""

_TAIL = 8192
"""Bytes before an unterminated last line that it is compared with."""

_ROW_ENDS = re.compile(rb"[\r\n]+")
_OF_A_WORKER = re.compile(rb"(encountered in worker\.[^\n\0]{0,100}\n)\0")
"""What torch's handler of signals writes when a data-loader worker dies: the NUL that ends the string comes with it."""
_NUL, _BACKSPACE, _LF, _CR = 0, 8, 10, 13
_HOLES = re.compile(rb"\0+")
_BACKSPACES = re.compile(rb"\x08+")


@dataclass(slots=True)
class Block:
    """Whole lines of a log, as UTF-8 without control sequences.

    `data` is `size` bytes followed by spare ones; `end` int64[n] is where rows end: at a line feed, a carriage return,
    a hole of NULs, or after the last line of a file; `first_line` is the number of the first line.
    """

    data: bytes
    size: int
    end: NDArray[np.intp]
    first_line: int
    offset: int


@dataclass(slots=True)
class Lines:
    """Reads a log file block by block; `problems` and `notes` fill meanwhile."""

    path: Path
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: int = 0
    """Bytes read so far of the unwrapped text, with those of skipped NULs."""
    line: int = 1
    """Number of the next line."""
    tail: bytes = b""
    """The end of the last block."""
    whole: int = 0
    """Bytes of the file when it was opened."""

    def __iter__(self) -> Iterator[Block]:
        with self.path.open("rb", buffering=0) as file:
            head = file.read(_HEAD)
            self.whole = size = os.fstat(file.fileno()).st_size  # growth of the log during reading is ignored
            if head.startswith(FOUR_NULS) and (start := leading_nuls(self.path)) < size:
                self._skip_nuls(start)
                file.seek(start)
                head = file.read(_HEAD)
            encoding = wide_encoding(head)
            file.seek(self.size)
            chunks = _pieces(file, size - self.size)
            if encoding:
                self.notes.append(f"read as {encoding}")
                chunks = _utf8(chunks, encoding)
            elif key := content_key(head):
                self.notes.append(f"each line is a JSON object; the log text is in its field {key!r}")
                chunks = unwrapped(chunks, key, LONGEST_LINE)
            else:
                yield from self._uncopied(file, size)
                file.seek(self.size)
                chunks = _pieces(file, size - self.size)
            yield from self._blocks(chunks)

    def _skip_nuls(self, count: int) -> None:
        """Starts after the NUL bytes that begin the file; they are not a line."""
        self.problems.append(leading_nul_problem(str(self.path), count))
        self.size = count

    def ends_open(self) -> bool:
        """Whether the last line is unterminated: the writer was cut off, or is still writing."""
        with self.path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - 4))
            tail = file.read().rstrip(b"\0")
        return bool(tail) and not tail.endswith((b"\n", b"\r"))

    def _uncopied(self, file: BinaryIO, size: int) -> Iterator[Block]:
        """Blocks of a file without a copy, while lines end well within the next `BLOCK` bytes.

        Stops at `self.size`, the number of bytes read.
        """
        while self.size + BLOCK <= size:
            file.seek(self.size)
            data = file.read(BLOCK)
            end = data.rfind(b"\n", 0, len(data) - len(_SPARE)) + 1
            if not end:
                return
            yield self._next(data, end)

    def _blocks(self, chunks: Iterator[bytes]) -> Iterator[Block]:
        kept: list[bytes] = []  # pieces of an unterminated line
        kept_size = 0
        for chunk in chunks:
            end = chunk.rfind(b"\n") + 1
            if not end:
                kept.append(chunk)
                kept_size += len(chunk)
                if kept_size < LONGEST_LINE:
                    continue
                # a redrawn bar of gigabytes: its states are rows of their own, so it may be cut between two
                data = b"".join(kept)
                end = data.rfind(b"\r") + 1 or len(data)
                yield self._next(data[:end] + _SPARE, end)
                kept, kept_size = [data[end:]], len(data) - end
                continue
            yield self._next(b"".join((*kept, memoryview(chunk)[:end], _SPARE)), kept_size + end)
            kept, kept_size = [chunk[end:]], len(chunk) - end
        if kept_size:
            data = self._without_cut_number(b"".join(kept))
            yield self._next(data + _SPARE, len(data))

    def _without_cut_number(self, data: bytes) -> bytes:
        """The unterminated end of a file without a last number that may be truncated, which is reported."""
        rows = _ROW_ENDS.split(self.tail + data)
        last, before = text_of(ESCAPES.sub(b"", rows[-1])), [text_of(row) for row in rows[:-1]]
        state = last_line(last, before)
        if state == "whole":
            self.notes.append(NO_END)
            return data
        what, lost = (CUT, "the rest of this line") if state == "cut" else (NOT_USED, "")
        self.problems.append(
            Problem(path=str(self.path), line=self.line, what=what, kept="the lines before it", lost=lost, extent="cut")
        )
        whole = without_last_number(last)
        return data[: len(data) - len(last[len(whole) :])]  # the number is ASCII

    def _next(self, data: bytes, size: int) -> Block:
        """The block of the first `size` of these bytes, which come next in the file."""
        block = self._block(data, size)
        ends = block.end[block.end < block.size]  # a piece of a line that is cut ends with a spare byte
        self.line += int(np.count_nonzero(np.frombuffer(block.data, np.uint8)[ends] == _LF))
        self.size += size
        progressed(str(self.path), min(self.size, self.whole), self.whole)
        self.tail = block.data[max(0, block.size - _TAIL) : block.size]
        return block

    def _block(self, data: bytes, size: int) -> Block:
        """The block of the first `size` of these bytes, cleaned of what is not text. The bytes after them are spare."""
        unclean = size > 2 * BLOCK and b"\0" in data  # a long hole: positions of its NULs take eight times its size
        unclean = unclean or (self.size == 0 and data.startswith(codecs.BOM_UTF8))
        if not unclean:
            at, control = _controls(data, size)
            unclean = bool(control[_NUL] or control[_BACKSPACE])
        if not unclean and control[ESC]:
            plain = without_colours(data, size, at)
            if plain is not None:
                data, size, at = plain
                control[ESC] = 0
            unclean = plain is None
        if unclean:
            data = self._cleaned(data[:size])
            size = len(data)
            data += _SPARE
            at, control = _controls(data, size)
        if control.sum() > control[_LF]:
            what = np.frombuffer(data, np.uint8)[at]
            at = at[(what == _LF) | (what == _CR) | (what == _NUL)]
        if size and (not len(at) or at[-1] < size - 1):
            at = np.append(at, size)
        return Block(data, size, at, self.line, self.size)

    def _cleaned(self, data: bytes) -> bytes:
        if b"\0" in data:
            data = _OF_A_WORKER.sub(rb"\1", data)
        if b"\0" in data:
            start = data.index(b"\0")
            nuls = data.count(b"\0")
            data, places = _HOLES.subn(b"\0", data)  # one is left of each: it ends a row, and is itself news
            line = self.line + data.count(b"\n", 0, start)
            at_end = not data.rpartition(b"\0")[2].strip()
            offset = self.size + start
            self.problems.append(nul_problem(str(self.path), nuls, offset, line, places=places, at_end=at_end))
        if b"\x1b" in data:
            data = without_escapes(data)
        if b"\x08" in data:
            data = _BACKSPACES.sub(_backspace, data)
        return data if self.size else data.removeprefix(codecs.BOM_UTF8)


def _controls(data: bytes, size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of control characters up to escape, including tabs, and the number of each."""
    buffer = np.frombuffer(data, np.uint8, size)
    pieces = range(0, max(size, 1), _PIECE)
    at = np.concatenate([np.flatnonzero(buffer[start : start + _PIECE] <= ESC) + start for start in pieces])
    return at, np.bincount(buffer[at], minlength=ESC + 1)


def _backspace(match: re.Match[bytes]) -> bytes:
    """Many backspaces return to the start of the line, like a carriage return (Keras); a few turn a spinner."""
    return b"\r" if match.end() - match.start() > 8 else b" "


def _pieces(file: BinaryIO, left: int) -> Iterator[bytes]:
    """The next `left` bytes of a file, in pieces."""
    while left and (piece := file.read(min(BLOCK, left))):
        left -= len(piece)
        yield piece


def _utf8(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in pieces:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


def text_of(row: bytes) -> str:
    """Decode a row as UTF-8, or as Latin-1 if it is not valid UTF-8."""
    try:
        return row.decode("utf-8")
    except UnicodeDecodeError:
        return row.decode("latin-1")


def encoding_of(row: bytes) -> str:
    """How a row is decoded; the same for all rows that differ only in their digits."""
    try:
        row.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def looks_like_text(head: bytes) -> bool:
    """Whether the first bytes of a file are text in a usual encoding, with no control characters but terminal ones."""
    if not head:
        return False
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)):
        return True
    control = sum(head.count(c) for c in (*range(1, 7), *range(14, 27), *range(28, 32)))
    nuls = head.count(0)
    wide = nuls > 0.3 * len(head) and (head[1::2].count(0) > 0.8 * nuls or head[::2].count(0) > 0.8 * nuls)
    if wide:
        return True
    return control <= 0.01 * len(head) and (nuls == 0 or len(head.replace(b"\0", b"")) > 0)
