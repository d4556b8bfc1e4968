"""Which rows of a block are alike: by their bytes with zeros for digits, and by the digits of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.text.bulk.templates import LONGEST, runs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.bulk.templates import RowLayout

FEW = 4
"""The fewest rows of one layout that are worth learning it."""
MOST_TURNS = 400
"""More groups than this are handled one by one only if they have more than three rows on average."""
_MIX = np.array([pow(0x9E3779B97F4A7C15, 2 * i + 3, 1 << 64) for i in range(LONGEST // 8 + 2)], np.uint64)
"""Odd numbers that look random: importing numpy.random takes longer than to read a small log."""
_TILE = 64
"""Rows compared at a time, because numpy is slow if the last axis is short."""


class Family:
    """Rows of one length that differ only in their digits; its `layouts` differ in the digits of names.

    A layout is known by the words with these digits: the columns `_named` under the masks `_masks`.
    """

    __slots__ = ("_masks", "_named", "_slack", "_zeros", "layouts")

    def __init__(self, row: bytes) -> None:
        self.layouts: dict[tuple[int, ...], RowLayout] = {}
        masks = _digits_of_names(row)
        self._named = np.flatnonzero(masks)
        self._masks = masks[self._named]
        raw = np.frombuffer(row, np.uint8)
        digits = (raw >= 48) & (raw < 58)
        padding = np.zeros((len(row) // 8 + 2) * 8 - len(row), np.uint8)
        self._zeros = np.append(np.where(digits, np.uint8(48), raw), padding)
        self._slack = np.append(np.where(digits, np.uint8(9), np.uint8(0)), ~padding)

    def alike(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which rows uint64[n, w] of this length belong to the family; bytes past their length do not count."""
        raw, width = words.view(np.uint8), words.shape[1] * 8
        alike = np.ones(len(words), bool)
        if len(words) >= _TILE > len(self._zeros) // width:
            self._zeros, self._slack = np.tile(self._zeros, _TILE), np.tile(self._slack, _TILE)
        whole = len(words) - len(words) % (len(self._zeros) // width)
        for rows, size in ((slice(0, whole), len(self._zeros)), (slice(whole, None), width)):
            other = (raw[rows].reshape(-1, size) ^ self._zeros[:size]) > self._slack[:size]
            if other.any():
                alike[rows][np.flatnonzero(other) // width] = False
        return alike

    def by_names(self, words: NDArray[np.uint64]) -> list[tuple[tuple[int, ...], NDArray[np.intp]]]:
        """The rows uint64[n, w] of the family by the digits of their names: the key in `layouts`, and indices.

        In the order of their first rows.
        """
        if not len(self._named) or not len(words):
            return [((), np.arange(len(words)))]
        named = words[:, self._named] & self._masks
        keys = hashes(named)
        short = (keys >> np.uint64(48)).astype(np.uint16)  # so few bits are sorted by radix, five times as fast
        order = np.argsort(short, kind="stable")
        cuts = _changes(named[order])
        if len(cuts) > np.count_nonzero(np.diff(short[order])):  # two names with the same bits
            order = np.argsort(keys, kind="stable")
            cuts = _changes(named[order])
        groups = np.split(order, cuts)
        first = order[np.append(0, cuts)]
        return [(tuple(named[first[i]].tolist()), groups[i]) for i in np.argsort(first).tolist()]


def _digits_of_names(row: bytes) -> NDArray[np.uint64]:
    """A mask of the digits that belong to a name, for each word of a row."""
    raw = np.frombuffer(row.ljust(-(-len(row) // 8) * 8, b"\0"), np.uint8)
    mask = np.where((raw >= 48) & (raw < 58), np.uint8(255), np.uint8(0))
    for start, end in runs_of(row):
        mask[start:end] = 0
    return mask.view("<u8")


def _changes(rows: NDArray[np.uint64]) -> NDArray[np.intp]:
    """The indices of rows uint64[n, k] that differ from the one before them."""
    changes: NDArray[np.intp] = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    return changes


def fold(words: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """The rows uint64[n, w] with zeros for digits and for bytes past their `length`."""
    raw = words.view(np.uint8)
    other = raw - np.uint8(48)
    np.greater(other, 9, out=other.view(bool))
    other *= raw
    other[:, length:] = 0
    return other.view(np.uint64)


def hashes(folded: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash per row, uint64[n]. Different rows collide with probability 2**-63; compare them to be sure."""
    found: NDArray[np.uint64] = np.einsum("ij,j->i", folded, _MIX[: folded.shape[1]])
    return found


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
