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

    None if a sequence is of another kind, or not complete. The bytes after the first `size`, of which there are two
    dozen or more, are left as they are.
    """
    raw = np.frombuffer(data, np.uint8)
    escapes = raw[at] == ESC
    start = at[escapes]
    length = _lengths(raw, start)
    if length is None:
        return None
    keep = np.ones(len(raw), bool)
    for column in range(int(length.max(initial=0))):
        keep[start[length > column] + column] = False
    removed = np.append(0, np.cumsum(length))
    before = removed[np.cumsum(escapes)[~escapes]]
    return Plain(raw[keep].tobytes(), size - int(removed[-1]), at[~escapes] - before)


def _lengths(raw: NDArray[np.uint8], start: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """How long the sequences at `start` are, if each is ``ESC [ parameters letter`` and stays in its line."""
    if (raw[start + 1] != ord("[")).any():
        return None
    length = np.zeros(len(start), np.intp)
    left = np.arange(len(start))
    for column in range(2, _LONGEST_COLOUR):
        byte = raw[start[left] + column]
        ends = _FINAL[byte]
        length[left[ends]] = column + 1
        left, byte = left[~ends], byte[~ends]
        if not len(left):
            return length
        if not _PARAMETER[byte].all():
            return None
    return None
