"""Terminal control sequences of a block: colours are taken out by columns, all others one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ESC = 27
_MOVES = re.compile(rb"\x1b\[\d*(?:;\d*)?[ABEFHfJ]")
"""The cursor moves to another line, or the screen is cleared: a new row starts."""
ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n\r]{0,2000}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LONGEST_COLOUR = 24
_PARAMETER, _FINAL = np.zeros(256, bool), np.zeros(256, bool)
_PARAMETER[0x30:0x40] = True
_FINAL[0x40:0x7F] = True
_FINAL[list(b"ABEFHfJ")] = False
_EIGHT = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""Masks of the first n bytes of a word."""
_ESCS, _LETTERS = np.uint64(0x1B1B1B1B1B1B1B1B), np.uint64(0x4040404040400000)
_DIGITS, _HIGH_NIBBLES = np.uint64(0x3030303030303030), np.uint64(0xF0F0F0F0F0F0F0F0)


class Plain(NamedTuple):
    """A block without its colours: `size` bytes of `data`, and where its control characters are."""

    data: bytes
    size: int
    at: NDArray[np.intp]


def without_escapes(data: bytes) -> bytes:
    """The text without its control sequences; a carriage return where the cursor moves to another line."""
    return ESCAPES.sub(b"", _MOVES.sub(b"\r", data))


def without_colours(data: bytes, size: int, at: NDArray[np.intp]) -> Plain | None:
    """The same for the first `size` bytes, of which `at` are the control characters, if no sequence moves the cursor.

    None if a sequence is of another kind, or not complete. After the first `size` bytes there are two dozen or more.
    """
    escapes = np.frombuffer(data, np.uint8)[at] == ESC
    start = at[escapes]
    words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))[start]
    length = _lengths(np.frombuffer(data, np.uint8), start, words)
    if length is None:
        return None
    # each sequence becomes a row of escapes, as bytes of one kind are deleted at once
    marked = bytearray(data)
    marked[size:] = b"\n" * (len(data) - size)
    mine = _EIGHT[np.minimum(length, 8)]
    words = (words & ~mine) | (_ESCS & mine)
    np.ndarray((len(data) - 7,), "<u8", marked, 0, (1,))[start] = words  # in order: sequences may share a word
    for column in range(8, int(length.max(initial=0))):
        np.frombuffer(marked, np.uint8)[start[length > column] + column] = ESC
    removed = np.zeros(len(at), np.intp)
    removed[escapes] = length
    at -= np.cumsum(removed)
    return Plain(bytes(marked.replace(b"\x1b", b"")), size - int(removed.sum()), at[~escapes])


def _lengths(raw: NDArray[np.uint8], start: NDArray[np.intp], words: NDArray[np.uint64]) -> NDArray[np.intp] | None:
    """How long the sequences at `start` are, if each is ``ESC [ parameters letter`` and stays in its line.

    `words` are the first eight bytes of each.
    """
    if ((words & np.uint64(0xFF00)) != ord("[") << 8).any():
        return None
    letters = words & _LETTERS
    first = letters & (~letters + np.uint64(1))  # its lowest bit: parameters do not have it
    length = np.frexp(first.astype(np.float64))[1].astype(np.intp) // 8 + 1
    if ((words ^ _DIGITS) & _HIGH_NIBBLES & _EIGHT[np.where(first == 0, 8, length - 1)] & ~_EIGHT[2]).any():
        return None
    left = np.flatnonzero(first == 0)
    for column in range(8, _LONGEST_COLOUR):
        if not len(left):
            break
        byte = raw[start[left] + column]
        ends = _FINAL[byte]
        length[left[ends]] = column + 1
        left, byte = left[~ends], byte[~ends]
        if not _PARAMETER[byte].all():
            return None
    return length if not len(left) and _FINAL[raw[start + length - 1]].all() else None
