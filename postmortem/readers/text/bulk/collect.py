"""Records of a block, put in by groups and handed out in the order of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.readers.text.steps.row_store import FIELDS, ROW, Cells, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from postmortem.readers.text.steps.row_store import RowStore


class Ordered:
    """Records of a block, put in by groups and handed out in the order of their rows. `line` int64[n]: of each row."""

    def __init__(self, line: NDArray[np.int64]) -> None:
        self.line = line
        self.n = len(line)
        self.groups: list[tuple[NDArray[np.intp], dict[str, Any], NDArray[np.int32], list[Any]]] = []
        self._done: list[tuple[NDArray[np.intp], NDArray[Any], NDArray[np.int32], NDArray[np.float64]]] = []
        self._single: list[tuple[int, Any]] = []
        self._codes: list[int] = []
        self._values: list[float] = []

    def put(self, at: NDArray[np.intp], rows: dict[str, Any], codes: NDArray[np.int32], values: list[Any]) -> None:
        """Add n records of the same k tags, for the rows `at`.

        `rows` are the fields of `ROW` except the line and `values` k numbers: arrays of n, or one number for all n.
        `codes` is int32[k].
        """
        self.groups.append((at, rows, codes, values))

    def add(self, at: int, row: Any, codes: Sequence[int], values: Sequence[float]) -> None:
        """Add one record. Several records of a row keep their order."""
        self._single.append((at, row))
        self._codes += codes
        self._values += values

    def add_all(
        self, at: NDArray[np.intp], rows: NDArray[Any], codes: NDArray[np.int32], values: NDArray[np.float64]
    ) -> None:
        """Add records of any tags; `values` holds the values of all records in order."""
        self._flush()
        self._done.append((at, rows, codes, values))

    def _flush(self) -> None:
        at = np.array([i for i, _ in self._single], np.intp)
        rows = np.array([tuple(r) for _, r in self._single], ROW)
        self._done.append((at, rows, np.array(self._codes, np.int32), np.array(self._values, np.float64)))
        self._single, self._codes, self._values = [], [], []

    def into(self, store: RowStore) -> None:
        """Append all records to the store."""
        self._flush()
        at, rows, codes, values = (np.concatenate(part) for part in zip(*self._done, strict=True))
        if (at[1:] < at[:-1]).any():
            order = np.argsort(at, kind="stable")
            which = Cells(rows["count"]).of(order)
            at, rows, codes, values = at[order], rows[order], codes[which], values[which]
        counts = rows["count"].astype(np.int64)
        n_records, n_values = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        if len(at):
            n_records += np.bincount(at, minlength=self.n)
            n_values += np.bincount(at, weights=counts, minlength=self.n).astype(np.int64)
        for group, _, tags, _ in self.groups:
            n_records[group] = 1
            n_values[group] = len(tags)
        record_at, value_at = np.cumsum(n_records), np.cumsum(n_values)
        size = int(record_at[-1]) if self.n else 0
        all_codes, numbers = store.room(int(value_at[-1]) if self.n else 0)
        record_at -= n_records
        value_at -= n_values
        first = np.searchsorted(at, at)
        single = record_at[at] + np.arange(len(at)) - first
        places = [record_at[group] for group, *_ in self.groups]
        store.column("line", size)[:] = np.repeat(self.line, n_records)
        for name in FIELDS[1:]:
            parts = [(where, found[name]) for where, (_, found, *_) in zip(places, self.groups, strict=True)]
            if len(at):
                parts.append((single, rows[name]))
            _put(store, name, size, parts)
        for group, _, tags, cells in self.groups:
            where = value_at[group]
            for tag, cell in zip(tags.tolist(), cells, strict=True):
                all_codes[where] = tag
                numbers[where] = cell
                where += 1
        if len(at):
            before = np.cumsum(counts) - counts
            owner = np.repeat(np.arange(len(at)), counts)
            where = value_at[at][owner] + np.arange(len(owner)) - before[first][owner]
            all_codes[where] = codes
            numbers[where] = values


def _put(store: RowStore, name: str, size: int, parts: list[tuple[NDArray[np.intp], Any]]) -> None:
    """Fill the next `size` cells of a column with parts: (positions, their cells or one number for all of them)."""
    if not parts:
        return
    usual = max((len(where), i) for i, (where, _) in enumerate(parts))[1]
    common = parts[usual][1]
    if isinstance(common, np.ndarray):
        common = common.flat[0]
    rest = [(where, cells) for where, cells in parts if isinstance(cells, np.ndarray) or not same(cells, common)]
    if all(
        isinstance(cells, np.ndarray) and ((cells == common) | ((cells != cells) & (common != common))).all()
        for _, cells in rest
    ):
        store.fill(name, size, common)
        return
    column = store.column(name, size)
    if len(rest) < len(parts):
        column[:] = common
    for where, cells in rest:
        column[where] = cells
