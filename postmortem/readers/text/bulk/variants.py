"""Rows of one family by the digits of their names, and which of them are read together.

``[rank3]: step 10 loss 2.1`` and ``[rank4]: step 11 loss 2.0`` are variants: the digit of a name is no number, and a
layout is learned for each. Where the layouts find the same numbers at the same places under the same names, as here,
where they differ in the rank alone, the rows of all of them are read at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.readers.text.bulk.templates import LONGEST, runs_of
from postmortem.readers.text.steps.row_store import FIELDS, ROW, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.readers.text.bulk.templates import RowLayout, Template

_MIX = np.array([pow(0x9E3779B97F4A7C15, 2 * i + 3, 1 << 64) for i in range(LONGEST // 8 + 2)], np.uint64)
"""Odd numbers that look random: importing numpy.random takes longer than to read a small log."""


class Together(NamedTuple):
    """Rows that are read together: their indices, a layout that they share, None if there is none, and the fields of
    `ROW` in which they differ from it."""

    rows: NDArray[np.intp]
    layout: RowLayout | None
    differing: dict[str, NDArray[Any]]


class Variants:
    """The layouts of rows that differ only in their digits; a layout is known by the digits of names.

    These are the columns `_named` under the masks `_masks`, of words.
    """

    def __init__(self, row: bytes) -> None:
        masks = _digits_of_names(row)
        self._named = np.flatnonzero(masks)
        self._masks = masks[self._named]
        self.layouts: list[RowLayout] = []
        self._names: NDArray[np.uint64] = np.empty((0, len(self._named)), np.uint64)
        self._keys: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._by_key: NDArray[np.intp] = np.empty(0, np.intp)
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._kind: NDArray[np.intp] = np.array([-1])
        """Of each layout: layouts of one kind are read together. -1 at the end: of unknown variants."""
        self._cells: NDArray[Any] = np.empty(0, ROW)
        self._fields: list[str] = []
        """The rows of all layouts, and the fields in which some of one kind differ."""

    def add(self, names: NDArray[np.uint64], layout: RowLayout) -> None:
        """Adds the layout of rows with these digits of names, uint64[k]."""
        row = layout.template.row
        kind = self._kinds.setdefault(_kind(layout.template) or (len(self.layouts),), len(self._kinds))
        alike = self._cells[self._kind[:-1] == kind]
        if len(alike) and row is not None:
            self._fields += [f for f in FIELDS if f not in self._fields and not same(alike[0][f], row[f])]
        self.layouts.append(layout)
        self._kind = np.concatenate([self._kind[:-1], [kind, -1]])
        self._cells = np.append(self._cells, np.zeros(1, ROW) if row is None else row)
        self._names = np.concatenate([self._names, names[None]])
        keys = hashes(self._names)
        self._by_key = np.argsort(keys, kind="stable")
        self._keys = keys[self._by_key]

    def variants(self, words: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The index in `layouts` of each of the rows uint64[n, w]; -1 if it is not known."""
        if not len(self.layouts):
            return np.full(len(words), -1)
        if not len(self._named):
            return np.zeros(len(words), np.intp)
        names = self._names_in(words)
        found = self._by_key[np.minimum(np.searchsorted(self._keys, hashes(names)), len(self._keys) - 1)]
        found[(self._names[found] != names).any(axis=1)] = -1
        return found

    def new(self, words: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.intp]]]:
        """The digits of names that occur in the rows uint64[n, w], and the rows with them; in the order of their first
        rows."""
        names = self._names_in(words)
        order = np.lexsort(names.T) if names.shape[1] else np.arange(len(names))
        cuts = np.flatnonzero((names[order][1:] != names[order][:-1]).any(axis=1)) + 1
        for here in sorted(np.split(order, cuts), key=lambda rows: int(rows[0])):
            yield names[here[0]], here

    def together(self, variants: NDArray[np.intp]) -> Iterator[Together]:
        """Rows by what they are read with; `variants` is the index in `layouts` of each of them, or -1."""
        kinds = self._kind[variants]
        there = np.flatnonzero(np.bincount(kinds + 1)) - 1
        for kind in there.tolist():
            here = np.flatnonzero(kinds == kind) if len(there) > 1 else np.arange(len(kinds))
            if kind == -1:
                yield Together(here, None, {})
                continue
            mine = variants[here]
            layout = self.layouts[mine[0]]
            fields = self._fields if layout.template.row is not None else ()
            yield Together(here, layout, {name: self._cells[name][mine] for name in fields})

    def _names_in(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return words[:, self._named] & self._masks


def _kind(template: Template) -> tuple[Any, ...] | None:
    """Equal for templates that differ in the row alone; None for one whose rows must be counted on their own."""
    if not template.pure:
        return ("slow",)
    if not template.hide:
        return None
    if template.row is None:
        return ("nothing", template.dialect, template.numbers)
    t = template
    places = (t.step, t.total, t.other, t.other_total, t.epoch, t.epochs, t.rank, t.year, t.dialect)
    clock = None if t.clock is None else tuple(t.clock.items())
    return (*places, clock, t.codes.tobytes(), tuple(t.values), repr(t.fixed))


def _digits_of_names(row: bytes) -> NDArray[np.uint64]:
    """A mask of the digits that belong to a name, for each word of a row."""
    raw = np.frombuffer(row.ljust(-(-len(row) // 8) * 8, b"\0"), np.uint8)
    mask = np.where((raw >= 48) & (raw < 58), np.uint8(255), np.uint8(0))
    for start, end in runs_of(row):
        mask[start:end] = 0
    return mask.view("<u8")


def hashes(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash per row, uint64[n]. Different rows collide with probability 2**-63; compare them to be sure."""
    found: NDArray[np.uint64] = np.einsum("ij,j->i", words, _MIX[: words.shape[1]])
    return found
