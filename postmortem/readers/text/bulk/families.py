"""Which rows of a block are alike: by their bytes with zeros for digits, and by the digits of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.text.bulk.variants import Variants

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.bulk.rows import Rows

FEW = 4
"""The fewest rows of one layout that are worth learning it."""
MOST_TURNS = 400
"""More groups than this are handled one by one only if they have more than three rows on average."""
_TILE = 64
"""Rows compared at a time, because numpy is slow if the last axis is short."""
_MOST_USUAL, _USUAL, _RARE = 12, 16, 64
"""So many families of one length are told apart by a word: those that one of 16 rows was of, until fewer than one of
64 is."""


class Family(Variants):
    """Rows of one length that differ only in their digits, and its variants, which differ in the digits of names."""

    def __init__(self, row: bytes) -> None:
        super().__init__(row)
        raw = np.frombuffer(row, np.uint8)
        digits = (raw >= 48) & (raw < 58)
        after = (len(row) // 8 + 2) * 8 - len(row)
        self._least = np.pad(np.where(digits, np.uint8(48), raw), (0, after))
        self._most = np.pad(np.where(digits, np.uint8(57), raw), (0, after), constant_values=255)
        self.folded = fold(self._least[None].view("<u8"), len(row))[0]
        """Its rows as `fold` leaves them."""

    def alike(self, words: NDArray[np.uint64]) -> NDArray[np.bool_] | None:
        """Which rows uint64[n, w] of this length belong to the family, None if all do; bytes past their length do not
        count."""
        raw = words.view(np.uint8)
        whole = len(raw) - len(raw) % _TILE
        if self._holds(raw[:whole].reshape(-1, _TILE * raw.shape[1])) and self._holds(raw[whole:]):
            return None
        others = ((raw < self._least) | (raw > self._most)).view("<u8")
        found = others[:, 0].copy()
        for column in range(1, others.shape[1]):  # faster than a reduction of short rows
            found |= others[:, column]
        alike: NDArray[np.bool_] = found == 0
        return alike

    def _holds(self, raw: NDArray[np.uint8]) -> bool:
        """Whether all of these rows belong to the family, several of which may stand side by side in each of `raw`."""
        if not len(raw):
            return True
        width = len(self._least)
        least, most = np.minimum.reduce(raw, axis=0), np.maximum.reduce(raw, axis=0)
        return bool((least.reshape(-1, width) >= self._least).all() and (most.reshape(-1, width) <= self._most).all())


class Usual:
    """The families that many rows of one `length` are of, told apart by the few words in which they differ."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.families: list[Family] = []
        self._columns: list[int] = []
        self._values: NDArray[np.uint64] = np.empty((0, 0), np.uint64)
        """The words of each family at these columns, uint64[families, columns]."""

    def note(self, family: Family, count: int, total: int) -> None:
        """Take note that `count` of `total` rows were of this family."""
        known = family in self.families
        if known and _RARE * count < total:
            self.families.remove(family)
        elif not known and _USUAL * count > total and len(self.families) < _MOST_USUAL:
            self.families.append(family)
        else:
            return
        self._columns = []
        while self.families:
            folded = np.stack([family.folded for family in self.families])
            distinct = [len({*map(bytes, folded[:, [*self._columns, i]])}) for i in range(folded.shape[1])]
            self._columns.append(int(np.argmax(distinct)))
            if max(distinct) == len(self.families):
                self._values = folded[:, self._columns]
                break

    def told_apart(self, rows: Rows, group: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        """The rows that may be of each of the families, and the others at the end."""
        if len(self.families) == 1:
            return [group, group[:0]]
        words = [fold(rows.word(group, i)[:, None], self.length - 8 * i)[:, 0] for i in self._columns]
        found, left = [], np.ones(len(group), bool)
        for values in self._values:
            here = words[0] == values[0]
            for word, value in zip(words[1:], values[1:], strict=True):
                here &= word == value
            found.append(group[here])
            left &= ~here
        return [*found, group[left]]


def fold(words: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """The rows uint64[n, w] with zeros for digits and for bytes past their `length`."""
    raw = words.view(np.uint8)
    other = raw - np.uint8(48)
    np.greater(other, 9, out=other.view(bool))
    other *= raw
    other[:, max(length, 0) :] = 0
    return other.view(np.uint64)


def equal_keys(keys: NDArray[np.uint64]) -> list[NDArray[np.intp]]:
    """Indices of equal keys: one array per common key, and the rest in the last one."""
    found: list[NDArray[np.intp]] = []
    left = np.arange(len(keys))
    while len(left) >= FEW and len(found) < 12:
        here = keys[left] == keys[left[0]]
        found.append(left[here])
        left = left[~here]
    if len(left) >= FEW:
        left = left[np.argsort(keys[left], kind="stable")]
        cuts = np.flatnonzero(keys[left][1:] != keys[left][:-1]) + 1
        groups = np.split(left, cuts) if len(cuts) < MOST_TURNS or len(left) > 3 * len(cuts) else [left]
        found += [g for g in groups if len(g) >= FEW and len(groups) > 1]
        left = np.concatenate([g for g in groups if len(g) < FEW or len(groups) == 1] or [left[:0]])
    return [*found, left]
