"""Rows of plain numbers in a W&B log, read many at a time.

Most rows of a history, and most updates of a summary, are a list of items, each a key and a number as JSON text, in
any order. All rows are followed at once: a cursor for each row moves on by an item in each round. Rows of any other
form are left to the caller.

An item is in protobuf's wire format: ``0a`` length, ``0a`` or ``12`` (key, nested key) length key, ``82 01``
(value_json) length text; lengths below 128. In a history, ``12`` length ``08`` and the step as a varint may follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LONGEST_KEY, LONGEST_NUMBER, LONGEST_STEP = 120, 32, 5
"""Bytes; more are not plain."""
_PADDING = 256
_ITEM, _KEY, _NESTED_KEY, _VALUE, _STEP, _NUMBER = 0x0A, 0x0A, 0x12, (0x82, 0x01), 0x12, 0x08
_SLOT_BITS = 14
_FIRST_BYTES = (np.arange(128) < np.arange(129)[:, None]).astype(np.uint8) * np.uint8(255)
"""Masks that keep the first bytes of 128, by their number."""
_IN_NUMBERS = np.zeros(256, bool)
_IN_NUMBERS[list(b"0123456789+-.eE\0")] = True
_MIX = np.arange(1, LONGEST_KEY // 8 + 2, dtype=np.uint64) ** np.uint64(3) * np.uint64(0x9E3779B97F4A7C15)
_MIX |= np.uint64(1)  # factors of a hash; what it finds is compared word by word


@dataclass(slots=True)
class PlainRows:
    """The cells of the plain rows among n, in order of the rows.

    `plain` bool[n]; `step` int64[n], -1 where a row has none; of the m cells `row` and `key` (an index of `keys`)
    int64[m], and where in `data` the JSON text is: `at` and `size` int64[m].
    """

    data: NDArray[np.uint8]
    plain: NDArray[np.bool_]
    step: NDArray[np.int64]
    keys: list[str]
    row: NDArray[np.int64]
    key: NDArray[np.int64]
    at: NDArray[np.int64]
    size: NDArray[np.int64]

    def within(self, start: int, stop: int) -> slice:
        """The cells of the rows from `start` to `stop`."""
        return slice(*np.searchsorted(self.row, [start, stop]).tolist())

    def last(self, start: int, stop: int) -> dict[str, bytes]:
        """The last text of each key in these rows, in the order in which the keys first occur."""
        cells = self.within(start, stop)
        key, at, size = self.key[cells], self.at[cells], self.size[cells]
        first, last = np.full((2, len(self.keys)), len(key))
        last[key] = np.arange(len(key))  # of several, the one that is written last stays
        first[key[::-1]] = np.arange(len(key))[::-1]
        order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(key))]
        found = ((self.keys[k], last[k]) for k in order.tolist())
        return {key: self.data[at[i] : at[i] + size[i]].tobytes() for key, i in found}

    def numbers(self) -> NDArray[np.float64]:
        """The cells as float64[m]. Rows with a cell that is no number, or two of one key, are not plain any more."""
        text = _windows(self.data, self.at, np.minimum(self.size, LONGEST_NUMBER))
        in_numbers, odd = _IN_NUMBERS[text], np.zeros(len(text), bool)
        if not in_numbers.all() or np.count_nonzero(text) != self.size.sum():  # a zero byte in a text, or a long one
            odd = ~in_numbers.all(axis=1) | (np.count_nonzero(text, axis=1) != self.size)
            self.plain[self.row[odd]] = False
        cell, keys = self.row * len(self.keys) + self.key, len(self.keys)
        if len(self.plain) * keys <= 8 * len(cell):  # counting takes memory for absent cells as well
            again = np.flatnonzero(np.bincount(cell) > 1)
        else:
            cell.sort()
            again = cell[1:][cell[1:] == cell[:-1]]
        self.plain[again // max(1, keys)] = False
        text[odd] = ord("0")
        try:
            return text.view(f"S{text.shape[1]}")[:, 0].astype(np.float64)
        except ValueError:  # such as "1-2"
            self.plain[:] = False
            return np.zeros(len(text))


def plain_rows(rows: Sequence[bytes]) -> PlainRows:
    """The plain rows among the bodies of history or summary messages."""
    data = np.frombuffer(b"".join(rows) + bytes(_PADDING), np.uint8)
    stop = np.cumsum([len(row) for row in rows], dtype=np.int64)
    at = np.append(0, stop[:-1])
    plain = np.ones(len(rows), bool)
    count = np.zeros(len(rows), np.int64)
    begins = []
    live = np.arange(len(rows))
    while len(live := live[(at[live] < stop[live]) & (data[at[live]] == _ITEM) & plain[live]]):
        begin = at[live]
        end = begin + 2 + data[begin + 1]
        plain[live] = _is_item(data, begin, end) & (end <= stop[live])
        begins.append(begin)
        count[live] += 1
        at[live] = np.minimum(end, stop[live])
    step, ended = _steps(data, at, stop)
    plain &= ended
    row = np.repeat(np.arange(len(rows)), count)
    begin = np.sort(np.concatenate([live, *begins]))[plain[row]]
    row = row[plain[row]]
    key_size = data[begin + 3].astype(np.int64)
    key, keys = _keys(data, begin + 4, key_size)
    plain[row[key == len(keys)]] = False
    kept, value = plain[row], begin + 7 + key_size
    return PlainRows(data, plain, step, keys, row[kept], key[kept], value[kept], data[value[kept] - 1].astype(np.int64))


def _is_item(data: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the bytes from `begin` to `end` are an item of one key and a text."""
    key_size = data[begin + 3].astype(np.int64)
    value = begin + 4 + np.minimum(key_size, LONGEST_KEY)
    size = data[value + 2].astype(np.int64)
    form = (data[begin + 2] == _KEY) | (data[begin + 2] == _NESTED_KEY)
    form &= (data[begin + 1] < 0x80) & (key_size <= LONGEST_KEY) & (size < 0x80)
    return np.asarray(form & (data[value] == _VALUE[0]) & (data[value + 1] == _VALUE[1]) & (value + 3 + size == end))


def _steps(
    data: NDArray[np.uint8], at: NDArray[np.int64], stop: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The steps that stand from `at` to `stop`, -1 where nothing does, and whether it is nothing or a step."""
    size = stop - at - 3
    none, zero = size == -3, (size == -1) & (data[at] == _STEP) & (data[at + 1] == 0)
    some = (size >= 1) & (size <= LONGEST_STEP) & (data[at] == _STEP) & (data[at + 2] == _NUMBER)
    some &= data[at + 1] == size + 1
    step = np.where(none, -1, 0)
    for i in range(LONGEST_STEP):
        digit = data[at + 3 + i].astype(np.int64)
        step += np.where(some & (i < size), (digit & 0x7F) << 7 * i, 0)
        some &= (i >= size) | ((digit >= 0x80) == (i < size - 1))
    return step, none | zero | some


def _windows(data: NDArray[np.uint8], at: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.uint8]:
    """uint8[n, whole words]: `size` bytes from each place, then zeros."""
    width = -(-int(size.max(initial=1)) // 8) * 8
    window = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))[at].view(np.uint8).reshape(-1, width)
    words = window.view(np.uint64)
    words &= _FIRST_BYTES.view(np.uint64)[:, : width // 8][size]
    return window


def _keys(
    data: NDArray[np.uint8], at: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[str]]:
    """For each name the index of its text, and the texts; their number for a name of which the caller knows more."""
    names = _windows(data, at, size)
    words = names.view(np.uint64)
    first, key = _different(words @ _MIX[: words.shape[1]])
    texts = [_name(names[i, : size[i]].tobytes()) for i in first]
    known = np.array([text is not None for text in texts], bool)[key]
    known &= (words == words[first][key]).all(axis=1) & (size == size[first][key])
    return np.where(known, key, len(texts)), [text or "" for text in texts]


def _different(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each different hash is first, and for each hash the index among them."""
    slot = (hashes >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
    first = np.full(1 << _SLOT_BITS, -1)
    first[slot[::-1]] = np.arange(len(slot))[::-1]  # of several, the last that is written is the first
    if (hashes[first[slot]] == hashes).all():
        used = np.flatnonzero(first >= 0)
        index = np.zeros(1 << _SLOT_BITS, np.int64)
        index[used] = np.arange(len(used))
        return first[used], index[slot]
    _, first, index = np.unique(hashes, return_index=True, return_inverse=True)  # two share a slot
    return first, index


def _name(raw: bytes) -> str | None:
    """None for parts of media and W&B's own values, and for what is not UTF-8."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if "._type" in name or name.startswith("_wandb") else name
