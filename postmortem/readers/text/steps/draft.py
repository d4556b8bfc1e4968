"""The rows and values of a file while their steps are settled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.roles import role_of
from postmortem.core.skipped import Skip, Skips
from postmortem.readers.text.steps.epochs import carried_epoch
from postmortem.readers.text.steps.nested import with_epochs
from postmortem.readers.text.steps.passes import counted_behind, second_passes
from postmortem.readers.text.steps.row_store import BAR, OTHERS, Cells, Mark, Tag
from postmortem.readers.text.steps.unnamed_positions import with_unnamed_positions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.readers.text.steps.row_store import RowStore, StoredRows

_FARTHEST_EPOCH = 2.0**40


@dataclass(slots=True)
class Draft:
    """Rows and values of a file, and which values are kept.

    `codes`, `values` and `keep` have one cell per value: the index of its tag, its number, and False once it is
    dropped. `tags` and `marks` (uint8, see `Mark`) have one per tag. `skipped` counts dropped values by reason.
    """

    rows: StoredRows
    cells: Cells
    codes: NDArray[np.uint16]
    values: NDArray[np.float64]
    keep: NDArray[np.bool_]
    tags: list[str]
    marks: NDArray[np.uint8]
    epoch: NDArray[np.float64]
    """The epoch of each row, its own or that of the header before it; NaN if unknown."""
    is_last_state: NDArray[np.bool_]
    """False for rows that are a state of a bar which a later one replaces."""
    notes: list[str] = field(default_factory=list)
    skipped: Skips = field(default_factory=Skips)

    @classmethod
    def of(cls, store: RowStore) -> Draft:
        """Take everything out of `store`; drop replaced states of bars and numbers under too many names."""
        rows, codes, values = store.release()
        notes: list[str] = []
        rows, codes, tags, replaced = second_passes(with_epochs(counted_behind(rows)), codes, list(store.tags), notes)
        codes, tags = _with_split_words(codes, tags)
        far = (rows["epoch"] >= _FARTHEST_EPOCH) | (rows["epoch"] <= -_FARTHEST_EPOCH)
        if far.any():  # of a damaged line
            rows = rows.with_column("epoch", np.where(far, np.nan, rows["epoch"]))
        marks = np.array([t.mark for t in tags], np.uint8)
        names, cells, keep = [t.name for t in tags], Cells(rows["count"]), np.ones(len(codes), bool)
        rows, counters = with_unnamed_positions(rows, codes, values, names)
        keep[counters] = False
        draft = cls(rows, cells, codes, values, keep, names, marks, carried_epoch(rows), last_states(rows), notes)
        draft.is_last_state[replaced] = False
        keep[cells.of(np.flatnonzero(~draft.is_last_state))] = False
        draft.drop(_not_yet(draft), Skip.NOT_YET)
        if OTHERS in tags:
            nameless = np.flatnonzero(codes == tags.index(OTHERS))
            draft.drop(nameless, Skip.NAMELESS)
        return draft

    def counts(self) -> NDArray[np.intp]:
        """How many values of each tag are kept."""
        codes = self.codes if self.keep.all() else self.codes[self.keep]
        return np.bincount(codes, minlength=len(self.tags))

    def drop(self, values: NDArray[Any], why: Skip) -> None:
        """Drop the values at these indices and count those that were still kept."""
        if n := int(self.keep[values].sum()):
            self.skipped[why] += n
            self.keep[values] = False

    def forget_epochs(self) -> None:
        """Know the epoch of no row any more, nor how many there are to be."""
        self.epoch = np.full(len(self.rows), np.nan)
        self.rows = self.rows.with_column("epoch", self.epoch).with_column("epochs", np.full(len(self.rows), -1))

    def set_apart(self, values: NDArray[np.bool_], word: str) -> None:
        """Give these values tags of their own: the word, and their tag."""
        for code in distinct(self.codes[values]).tolist():
            self.codes[values & (self.codes == code)] = len(self.tags)
            self.tags.append(f"{word} {self.tags[code]}")
            self.marks = np.append(self.marks, self.marks[code])

    def absent_tags(self) -> Iterator[tuple[int, str, int | None]]:
        """Codes that mark the absence of a tag, with its name and its own code; None if no row prints it."""
        own = {t: i for i, t in enumerate(self.tags) if self.marks[i] == Mark.PLAIN}
        for code in np.flatnonzero(self.marks == Mark.ABSENT).tolist():
            yield code, self.tags[code], own.get(self.tags[code])


def _not_yet(draft: Draft) -> NDArray[np.intp]:
    """Indices of the infinite values of bars at 0 that show nothing else: what a program begins with.

    Only of tags that have finite values as well: then the infinity was none of the training.
    """
    rows, codes, values = draft.rows, draft.codes, draft.values
    first = np.flatnonzero((rows["flags"] & BAR > 0) & (rows["step"] == 0) & (rows["count"] > 0))
    if not len(first) or not np.isposinf(values).any():
        return np.empty(0, np.intp)
    known = np.zeros(len(draft.tags), bool)
    known[codes[np.isfinite(values)]] = True
    blank = np.isposinf(values) & known[codes]
    own, count = draft.cells.of(first), rows["count"][first].astype(np.intp)
    full = np.logical_and.reduceat(blank[own], np.cumsum(count) - count)
    return draft.cells.of(first[full])


def last_states(rows: StoredRows) -> NDArray[np.bool_]:
    """False for states of a bar that the next state of the same bar at the same position replaces; bool[rows]."""
    keep = np.ones(len(rows), bool)
    bars = np.flatnonzero(rows["flags"] & BAR)
    if len(bars) > 1:
        bars = bars[rows["count"][bars] > 0]
        rank = rows["rank"][bars]
        if (rank[1:] != rank[:-1]).any():
            bars = bars[np.argsort(rank, kind="stable")]
        same = np.ones(max(len(bars) - 1, 0), bool)
        for name in ("rank", "step", "total", "epoch"):
            column = rows[name][bars]
            same &= (column[1:] == column[:-1]) | ((column[1:] != column[1:]) & (column[:-1] != column[:-1]))
        count = rows["count"][bars]
        keep[bars[:-1][same & (count[1:] >= count[:-1])]] = False
    return keep


def _with_split_words(codes: NDArray[np.uint16], tags: list[Tag]) -> tuple[NDArray[np.uint16], list[Tag]]:
    """Put the split word before the tags of evaluations that would pass for tags of the training."""
    if not any(t.mark == Mark.HELD_OUT for t in tags):
        return codes, tags
    plain = {t.name for t in tags if t.mark == Mark.PLAIN}
    splits: dict[str, set[str]] = {}
    for tag in tags:
        if tag.split:
            splits.setdefault(tag.name, set()).add(tag.split[:3].lower())  # "Val" and "validation" are one
    plain |= {name for name, words in splits.items() if len(words) > 1}  # the same names of dev and test
    final: dict[Tag, int] = {}
    new = np.empty(len(tags), codes.dtype)
    for i, tag in enumerate(tags):
        if tag.mark == Mark.HELD_OUT:
            is_known = role_of(tag.name) in ("loss", "perplexity", "accuracy", "val_accuracy")
            tag = Tag(f"{tag.split} {tag.name}" if is_known or tag.name in plain else tag.name)
        new[i] = final.setdefault(tag, len(final))
    return new[codes], list(final)
