"""Names and numbers of rows that share their words with no other row, read with whole arrays.

A full parse per line would be too slow for such a log. This finds what a search for ``name=1``, ``name: 1`` and
``name 1`` finds; the reader notes how many lines it read this way. The text is cut into runs of word characters. A run
that looks like a number takes the run before it as its name if only a sign or a blank is between them. Numbers that
differ only in their digits are read together, like the rows of a layout (`templates`); names are compared by a hash of
their bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.readers.text.bulk.digit_columns import DigitColumns, NumberSpan
from postmortem.readers.text.bulk.families import equal_keys, fold
from postmortem.readers.text.bulk.variants import hashes
from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.records.step_words import POSITIONS, position
from postmortem.readers.text.records.tokens import number
from postmortem.readers.text.steps.row_store import MOST_TAGS, NO_STEP, OTHERS, ROW, Tag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.bulk.collect import Ordered
    from postmortem.readers.text.bulk.rows import Rows
    from postmortem.readers.text.steps.row_store import RowStore

_WORD = bytes((chr(c).isalnum() and c < 128) or c in b"_/.@+-" or c >= 128 for c in range(256))
_FIRST = np.array([c in b"+-0123456789nNi" for c in range(256)])
"""Bytes that a number may begin with."""
_AFTER = np.array([c in b" \t\n\r\0\x0b\x0c,|;:%)]}" for c in range(256)])
"""Bytes that may follow a number."""
_NUMBER = re.compile(
    rb"(?!0x)([-+]?\d++(?:\.\d++)?+(?:[eE][-+]?\d++)?+|nan|NaN|-?inf)(?:[a-zA-Z]{1,3}(?!\w).*)?", re.DOTALL
)
_DIGITS = re.compile(rb"\d+")
_NAME = re.compile(rb"\b[A-Za-z_][\w/.@]*$")
_KNOWN = re.compile("loss|acc|lr|norm|ppl|err|reward|score|perplex|time|tok|mem|grad|scale|bleu|f1|iou|map|kl|mse|mae")

_LONGEST_NUMBER, _LONGEST_NAME = 24, 32
_SLOTS = 16
_NOTHING = -1
_LOOKED_AT = 4096
"""Number of unknown names that are still examined one at a time once there are too many names."""


def _between() -> dict[int, bool]:
    """What may be between a name and its number, as an integer of its last four bytes: True if it has a sign."""
    signs = {
        quote + sign: sign != b" "
        for quote in (b"", b"'", b'"')
        for sign in (b" ", b":", b"=", b": ", b"= ", b" :", b" =", b" : ", b" = ")
    }
    return {int.from_bytes(text.rjust(4, b"\0"), "little"): sign for text, sign in signs.items()}


_BETWEEN = _between()
_GAPS = np.array(sorted(_BETWEEN), np.uint32)
_SIGNS = np.array([_BETWEEN[gap] for gap in sorted(_BETWEEN)])
_NONFINITE = np.array([int.from_bytes(text, "little") for text in (b"nan", b"NaN", b"inf", b"-inf")], np.uint32)
_LAST = np.array([(1 << 32) - (1 << 8 * (4 - n)) for n in range(5)], np.uint32)
"""Masks for the last n bytes of a little-endian word of four."""
_TAILS = np.array([[(1 << 8 * min(max(n - 8 * k, 0), 8)) - 1 for k in range(4)] for n in range(33)], np.uint64)
"""Masks for the first n bytes of 32."""


class NameValueScan:
    """Reads rows of one log and remembers its names. `dialect` is the index that the rows are stored with."""

    def __init__(self, store: RowStore, dialect: int) -> None:
        self._store = store
        self._dialect = dialect
        self._codes: dict[tuple[bytes, bool], int] = {}
        self._key = np.zeros(1 << _SLOTS, np.uint64)
        self._code = np.zeros(1 << _SLOTS, np.int32)

    def read(self, rows: Rows, which: NDArray[np.intp], out: Ordered) -> int:
        """Read these rows into `out`; return how many of them have a number with a name."""
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
        for level in (Trust.LOCAL, Trust.STEP, Trust.ITERATION, Trust.GLOBAL):
            here = np.flatnonzero((pairs.code == _NOTHING - level) & pairs.whole)[
                ::-1
            ]  # the first of a row is written last
            steps[row[here]] = np.minimum(pairs.value[here], 2.0**62).astype(np.int64)
        is_value = pairs.code >= 0
        counts = np.bincount(row[is_value], minlength=len(which))
        is_filled = np.flatnonzero((counts > 0) | (steps != NO_STEP))
        found = np.zeros(len(is_filled), ROW)
        found["rank"], found["wall_time"] = -1, np.nan
        found["step"] = steps[is_filled]
        found["total"] = found["other_total"] = found["epochs"] = found["base"] = -1
        found["other"] = NO_STEP
        found["epoch"], found["level"], found["dialect"], found["count"] = (
            np.nan,
            Trust.ITERATION,
            self._dialect,
            counts[is_filled],
        )
        out.add_all(which[is_filled], found, pairs.code[is_value], pairs.value[is_value])
        return int((counts > 0).sum())

    def _pairs(self, data: bytes) -> _Pairs:
        data = b"\n" * 8 + data + b"\n" * (_LONGEST_NAME + 8)
        raw = np.frombuffer(data, np.uint8)
        is_word = np.frombuffer(data.translate(_WORD), np.uint8)
        edge = np.flatnonzero(is_word[1:] != is_word[:-1]) + 1
        start, end = edge[::2], edge[1::2]
        candidate = np.flatnonzero(_FIRST[raw[start]] & _AFTER[raw[end]])
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

    def _names(
        self, data: bytes, start: NDArray[np.intp], length: NDArray[np.intp], bare: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        """The codes of names; `_NOTHING` minus the trust for a word that names the step, `_NOTHING` for other words."""
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
            if some > _LOOKED_AT and self._store.full():
                code[odd] = self._store.code(OTHERS)
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
            return _NOTHING  # without a sign, only a known word is a name
        return self._store.code(Tag(name))


class _Pairs(NamedTuple):
    """N numbers with names, in order. `whole`: printed as digits only."""

    start: NDArray[np.intp]
    code: NDArray[np.int32]
    value: NDArray[np.float64]
    whole: NDArray[np.bool_]


def _cells(data: bytes, start: NDArray[np.intp], width: int) -> NDArray[np.uint64]:
    """The `width` bytes from each start on; uint64[n, width / 8]."""
    return (
        np.ndarray((len(data) - width,), f"V{width}", data, 0, (1,))[start].view("<u8").reshape(len(start), width // 8)
    )


def _numbers(
    data: bytes, start: NDArray[np.intp], length: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """The numbers that runs begin with: (value, whether it is digits only, whether it is a number at all)."""
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
            place = NumberSpan(0, runs[0][0], len(runs) - 1, 0) if runs else None
            which = short[alike]
            value[which] = (
                number(found[1].decode())
                if place is None
                else DigitColumns(words.take(alike, 0), text, runs).number(place)
            )
            whole[which], is_number[which] = text.isdigit(), True
    for i in (*short[rest].tolist(), *np.flatnonzero(length > _LONGEST_NUMBER).tolist()):
        text = data[int(start[i]) : int(start[i] + length[i])]
        if (found := _NUMBER.fullmatch(text)) is not None:
            value[i], whole[i], is_number[i] = float(found[1]), text.isdigit(), True
    return value, whole, is_number
