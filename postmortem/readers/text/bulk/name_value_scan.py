"""Names and numbers of rows in which no two have the same words, by whole arrays.

Such a log would cost a full parse per line. What is read here is what a search for ``name=1``, ``name: 1`` and ``name 1``
finds; the reader says so, and how many lines it concerns. The text is cut into runs of word characters. A run that looks
like a number takes the run before it as its name if only a sign or a blank stands between. Numbers that differ only in
their digits are read together, as the rows of a layout are (`_shapes`); names are told apart by a hash of their bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.readers.text.bulk.digit_columns import Columns, Place
from postmortem.readers.text.bulk.templates import equal_keys, fold, hashes
from postmortem.readers.text.records.miner import number
from postmortem.readers.text.records.step_words import POSITIONS, position
from postmortem.readers.text.steps.row_store import MOST_TAGS, NO_STEP, OTHERS, ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.bulk.rows import Ordered, Rows
    from postmortem.readers.text.steps.row_store import Track

_WORD = bytes((chr(c).isalnum() and c < 128) or c in b"_/.@+-" or c >= 128 for c in range(256))
_FIRST = np.array([c in b"+-0123456789nNi" for c in range(256)])
"""What a number may begin with."""
_BEHIND = np.array([c in b" \t\n\r\0\x0b\x0c,|;:%)]}" for c in range(256)])
"""What may stand behind a number."""
_NUMBER = re.compile(rb"(?!0x)([-+]?\d++(?:\.\d++)?+(?:[eE][-+]?\d++)?+|nan|NaN|-?inf)(?:[a-zA-Z]{1,3}(?!\w).*)?", re.DOTALL)
_DIGITS = re.compile(rb"\d+")
_NAME = re.compile(rb"\b[A-Za-z_][\w/.@]*$")
_KNOWN = re.compile("loss|acc|lr|norm|ppl|err|reward|score|perplex|time|tok|mem|grad|scale|bleu|f1|iou|map|kl|mse|mae")

_LONGEST_NUMBER, _LONGEST_NAME = 24, 32
_SLOTS = 16
_NOTHING = -1
_LOOKED_AT = 4096
"""Unknown names of some rows that are looked at one by one once there are too many names."""


def _between() -> dict[int, bool]:
    """What may stand between a name and its number, as the last four bytes of it and their number -> whether that is a sign."""
    signs = {quote + sign: sign != b" " for quote in (b"", b"'", b'"') for sign in (b" ", b":", b"=", b": ", b"= ", b" :", b" =", b" : ", b" = ")}
    return {int.from_bytes(text.rjust(4, b"\0"), "little"): sign for text, sign in signs.items()}


_BETWEEN = _between()
_GAPS = np.array(sorted(_BETWEEN), np.uint32)
_SIGNS = np.array([_BETWEEN[gap] for gap in sorted(_BETWEEN)])
_NONFINITE = np.array([int.from_bytes(text, "little") for text in (b"nan", b"NaN", b"inf", b"-inf")], np.uint32)
_LAST = np.array([(1 << 32) - (1 << 8 * (4 - n)) for n in range(5)], np.uint32)
"""Keeps the last n bytes of a little-endian word of four."""
_TAILS = np.array([[(1 << 8 * min(max(n - 8 * k, 0), 8)) - 1 for k in range(4)] for n in range(33)], np.uint64)
"""Keeps the first n bytes of 32."""


class Quick:
    """Reads rows of one log; remembers its names. `dialect` is the number under which the rows are entered."""

    def __init__(self, track: Track, dialect: int) -> None:
        self._track = track
        self._dialect = dialect
        self._codes: dict[tuple[bytes, bool], int] = {}
        self._key = np.zeros(1 << _SLOTS, np.uint64)
        self._code = np.zeros(1 << _SLOTS, np.int32)

    def read(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> int:
        """Reads these rows into `out` -> how many of them had a number with a name."""
        first, last = int(which[0]), int(which[-1])
        if last - first == len(which) - 1:
            start, stop = int(rows.start[first]), int(rows.start[last] + rows.length[last])
            data, ends = rows.padded[start:stop], rows.start[which] + rows.length[which] - start
        else:
            data = b"\n".join([rows.bytes(i) for i in which.tolist()])
            ends = np.cumsum(rows.length[which] + 1) - 1
        pairs = self._pairs(data)
        counted = np.searchsorted(pairs.start, ends)
        row = np.repeat(np.arange(len(which)), np.diff(counted, prepend=0))
        steps = np.full(len(which), NO_STEP)
        for level in range(1, 5):
            here = np.flatnonzero((pairs.code == _NOTHING - level) & pairs.whole)[::-1]  # the first of a row is written last
            steps[row[here]] = np.minimum(pairs.value[here], 2.0**62).astype(np.int64)
        is_value = pairs.code >= 0
        counts = np.bincount(row[is_value], minlength=len(which))
        told = np.flatnonzero((counts > 0) | (steps != NO_STEP))
        found = np.zeros(len(told), ROW)
        found["rank"], found["wall_time"] = -1, np.nan
        found["step"] = steps[told]
        found["total"] = found["epochs"] = found["base"] = -1
        found["epoch"], found["level"], found["dialect"], found["count"] = np.nan, 3, self._dialect, counts[told]
        out.add_all(which[told], found, pairs.code[is_value], pairs.value[is_value])
        return int((counts > 0).sum())

    def _pairs(self, data: bytes) -> _Pairs:
        data = b"\n" * 8 + data + b"\n" * (_LONGEST_NAME + 8)
        raw = np.frombuffer(data, np.uint8)
        is_word = np.frombuffer(data.translate(_WORD), np.uint8)
        edge = np.flatnonzero(is_word[1:] != is_word[:-1]) + 1
        start, end = edge[::2], edge[1::2]
        candidate = np.flatnonzero(_FIRST[raw[start]] & _BEHIND[raw[end]])
        candidate = candidate[candidate > 0]
        text = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
        odd = np.flatnonzero(raw[start[candidate]] - np.uint8(48) > 9)
        begin, length = start[candidate[odd]], (end - start)[candidate[odd]]
        letters = text[begin] & ~_LAST[np.maximum(4 - length, 0)]
        signed = (raw[begin] < 48) & (raw[begin + 1] - np.uint8(48) <= 9)
        candidate = np.delete(candidate, odd[~(signed | ((length <= 4) & np.isin(letters, _NONFINITE)))])
        gap = start[candidate] - end[candidate - 1]
        candidate, gap = candidate[gap <= 4], gap[gap <= 4]
        word = text[start[candidate] - 4] & _LAST[gap]
        which = np.minimum(np.searchsorted(_GAPS, word), len(_GAPS) - 1)
        fits = _GAPS[which] == word
        candidate, bare = candidate[fits], ~_SIGNS[which[fits]]
        value, whole, is_number = _numbers(data, start[candidate], end[candidate] - start[candidate])
        candidate, bare = candidate[is_number], bare[is_number]
        code = self._names(data, start[candidate - 1], end[candidate - 1] - start[candidate - 1], bare)
        return _Pairs(start[candidate] - 8, code, value[is_number], whole[is_number])

    def _names(self, data: bytes, start: NDArray[np.intp], length: NDArray[np.intp], bare: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The codes of names, or `_NOTHING` less the level of a word of a step, or `_NOTHING`."""
        words = _cells(data, start, _LONGEST_NAME) & _TAILS[np.minimum(length, _LONGEST_NAME)]
        key = hashes(words) * np.uint64(2) + bare
        slot = (key >> np.uint64(64 - _SLOTS)).astype(np.intp)
        code = self._code[slot]
        odd = np.flatnonzero((self._key[slot] != key) | (length > _LONGEST_NAME))
        some = 64
        while len(odd):
            for i in odd[:some].tolist():
                code[i] = self._code_of(data[int(start[i]) : int(start[i] + length[i])], bool(bare[i]))
                if length[i] <= _LONGEST_NAME:
                    self._key[slot[i]], self._code[slot[i]] = key[i], code[i]
            odd = odd[some:]
            if some > _LOOKED_AT and self._track.full():
                code[odd] = self._track.code(OTHERS)
                break
            code[odd] = self._code[slot[odd]]
            odd = odd[(self._key[slot[odd]] != key[odd]) | (length[odd] > _LONGEST_NAME)]
            some *= 4
        return code

    def _code_of(self, run: bytes, bare: bool) -> int:
        code = self._codes.get((run, bare))
        if code is None:
            code = self._meaning(run, bare)
            if len(self._codes) < 2 * MOST_TAGS:
                self._codes[run, bare] = code
        return code

    def _meaning(self, run: bytes, bare: bool) -> int:
        found = _NAME.search(run)
        if found is None:
            return _NOTHING
        name = found[0].decode("ascii", "replace")
        low = name.lower()
        if low in POSITIONS or any(word in low for word in ("step", "iter", "epoch", "update")):
            where = position(name)
            if where is not None:
                return _NOTHING - where[1] if where[0] == "step" else _NOTHING
        if bare and _KNOWN.search(low) is None:
            return _NOTHING  # a word in front of a number is a name only if it is a known one
        return self._track.code(name)


class _Pairs(NamedTuple):
    """n numbers with names, in order. `whole`: it is printed as digits only."""

    start: NDArray[np.intp]
    code: NDArray[np.int32]
    value: NDArray[np.float64]
    whole: NDArray[np.bool_]


def _cells(data: bytes, start: NDArray[np.intp], width: int) -> NDArray[np.uint64]:
    """The `width` bytes from each start on, uint64[n, width / 8]."""
    return np.ndarray((len(data) - width,), f"V{width}", data, 0, (1,))[start].view("<u8").reshape(len(start), width // 8)


def _numbers(data: bytes, start: NDArray[np.intp], length: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """The numbers with which runs begin -> (value, whether it is digits only, whether it is one at all)."""
    value = np.zeros(len(start))
    whole, is_number = np.zeros(len(start), bool), np.zeros(len(start), bool)
    short = np.flatnonzero(length <= _LONGEST_NUMBER)
    words = _cells(data, start[short], _LONGEST_NUMBER + 8)
    key = hashes(fold(words, _LONGEST_NUMBER) & _TAILS[length[short]]) * np.uint64(32) + length[short].astype(np.uint64)
    *common, rest = equal_keys(key)
    for alike in common:
        first = short[alike[0]]
        text = data[int(start[first]) : int(start[first] + length[first])]
        if (found := _NUMBER.fullmatch(text)) is not None:
            runs = [m.span() for m in _DIGITS.finditer(text, 0, found.end(1))]
            place = Place(0, runs[0][0], len(runs) - 1, 0) if runs else None
            which = short[alike]
            value[which] = number(found[1].decode()) if place is None else Columns(words.take(alike, 0), text, runs).number(place)
            whole[which], is_number[which] = text.isdigit(), True
    for i in (*short[rest].tolist(), *np.flatnonzero(length > _LONGEST_NUMBER).tolist()):
        text = data[int(start[i]) : int(start[i] + length[i])]
        if (found := _NUMBER.fullmatch(text)) is not None:
            value[i], whole[i], is_number[i] = float(found[1]), text.isdigit(), True
    return value, whole, is_number
