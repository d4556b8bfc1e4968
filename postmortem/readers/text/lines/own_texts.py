"""Where a log holds a page of `postmortem scan` or the text of `postmortem replay`: a job script may print both into
the output of the training that they are about. They carry no mark, as people read them alone as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_VERDICT = rb"(?:FAILED {6}|SUSPECT {5}|HEALTHY {5}|NOT JUDGED {2})"
_LABELS = (
    *("why", "values", "findings", "culprit", "for", "against", "unless", "last good", "next", "log", "not checked"),
    *("notes", "log alone", "damage", "not read", "limits", "settings"),
)
_COLUMNS = rb" {12}"
_LABELLED = b"|".join(label.ljust(12).encode() for label in _LABELS)
_REPLAY_TELLS = rb"Culprit: |No culprit: |the program raised |The replayed losses do not|The rerun could not be"
_PAGE = re.compile(rb"%b\S[^\n]*\n%b\S|%b(?:No run was found|\d+ runs?: [^\n]*\n\n)" % (_VERDICT, _COLUMNS, _COLUMNS))
_OF_PAGE = re.compile(rb"(?:%b|%b|%b)[^\n]*|\s*" % (_COLUMNS, _VERDICT, _LABELLED))
_REPLAY = re.compile(rb"Replay of [^\n]*(?:\n  [^\n]*){0,8}\n\n(?:%b)" % _REPLAY_TELLS)
_LAST_OF_REPLAY = re.compile(rb"How this was established:\s*")
_AFTER_IT = re.compile(rb"  [^\n]*|Loaded from the checkpoint:\s*|Not loaded:\s*")
_LONGEST_REPLAY = 400  # rows up to its last part

_HEADS = np.frombuffer(b"FAILSUSPHEALNOT Repl", "<u4")
_INITIALS = np.zeros(256, bool)
_INITIALS[np.frombuffer(b"FSHNR", np.uint8)] = True
_BLANKS = np.frombuffer(b"    ", "<u4")[0]


class OwnTexts:
    """Finds them block by block; a text that goes on in the next block is known there."""

    def __init__(self) -> None:
        self._inside = ""  # "page", "replay", or "end": the last part of a replay
        self._rows = 0

    def spans(self, data: bytes, start: NDArray[np.int64], length: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """First row and end of each text among the rows of a block."""
        n = len(start)
        last = self._end(data, start, length, 0) if self._inside else 0
        if last:
            yield 0, last
        for row in _candidates(data, start, length).tolist():
            if row < last:
                continue
            at = int(start[row])
            self._inside = "page" if _PAGE.match(data, at) else "replay" if _REPLAY.match(data, at) else ""
            if self._inside:
                self._rows = 0
                last = self._end(data, start, length, row + 1)
                yield row, last
        if last < n:
            self._inside = ""

    def _end(self, data: bytes, start: NDArray[np.int64], length: NDArray[np.int64], row: int) -> int:
        """The first row from `row` on that is not of the text."""
        while row < len(start) and self._goes_on(data[int(start[row]) : int(start[row] + length[row])]):
            row += 1
        return row

    def _goes_on(self, line: bytes) -> bool:
        if self._inside == "page":
            return _OF_PAGE.fullmatch(line) is not None
        if self._inside == "end":
            return _AFTER_IT.fullmatch(line) is not None
        self._rows += 1
        if _LAST_OF_REPLAY.fullmatch(line):
            self._inside = "end"
        return self._rows <= _LONGEST_REPLAY


def _candidates(data: bytes, start: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.intp]:
    """The rows that may begin a text, by their first characters; a count of runs has an empty row after it."""
    initial = np.frombuffer(data, np.uint8)[start]
    headed = np.flatnonzero(_INITIALS[initial])
    counts = np.flatnonzero(length[1:] == 0)
    words = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
    headed = headed[np.isin(words[start[headed]], _HEADS)]
    for column in (0, 4, 8):
        counts = counts[words[start[counts] + column] == _BLANKS]
    return distinct(np.concatenate([headed, counts]))
