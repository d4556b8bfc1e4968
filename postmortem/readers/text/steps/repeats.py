"""Numbers printed more than once: states of a redrawn bar, prints of several loggers, values carried by a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.roles import role_of
from postmortem.core.skipped import Skip
from postmortem.readers.text.steps.row_store import BAR, NO_STEP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.readers.text.steps.draft import Draft
    from postmortem.readers.text.steps.row_store import Cells, StoredRows

_AT_ONCE = 1 << 19
"""About how many values are sorted at once."""
_ROWS_AT_ONCE, _SLOTS = 1 << 16, 1 << 22


def again(draft: Draft, step: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for values that repeat the one before of the same tag and rank; bool[values].

    A repeat has the same step and number, perhaps rounded, or is carried over by a bar. In rows of one style that is
    not enough: a row repeats another of its style only as a whole, see `_Twins`.
    """
    rows, cells, codes, values, keep, tags = (
        draft.rows, draft.cells, draft.codes, draft.values, draft.keep, draft.tags,
    )  # fmt: skip
    found_again = np.zeros(len(codes), bool)
    flags, rank = rows["flags"], rows["rank"]
    twins = _Twins(draft)
    repeated = 0
    twice = _twice_at_a_step(rows, step, codes, cells, len(tags))
    for a, b, of_a, of_b in _pairs_by_tag(rank, codes, cells, twice, keep, len(tags)):
        once = np.flatnonzero((step[of_a] == step[of_b]) & (of_a != of_b))
        x, y = values[a[once]], values[b[once]]
        same, b, of_a, of_b = same_or_rounded(x, y), b[once], of_a[once], of_b[once]
        alike = twins.of_one_style(of_a, of_b)
        twins.add(b[alike], of_a[alike], of_b[alike], same[alike])
        found = b[same & ~alike]
        found_again[found] = True
        repeated += len(found)
    found = twins.repeats()
    found_again[found] = True
    repeated += len(found)
    if repeated:
        draft.skipped[Skip.REPEATED] = repeated
    if (flags & BAR).any():
        carried = _carried(draft, found_again)
        found_again[carried] = True
        if len(carried):
            draft.skipped[Skip.CARRIED] = len(carried)
    return found_again


def _carried(draft: Draft, found_again: NDArray[np.bool_]) -> NDArray[Any]:
    """The values that a bar only carries on from an evaluation before.

    Where another score of an evaluation has changed in the same row, it was evaluated again, with an equal result.
    """
    rows, codes, cells, values, tags = draft.rows, draft.codes, draft.cells, draft.values, draft.tags
    slow = np.array([_carried_over(t) for t in tags], bool)
    evaluated = np.array([_of_evaluations(t) for t in tags], bool)
    again = np.zeros(len(rows), bool)
    found, owner = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for a, b, _, of_b in _pairs_by_tag(rows["rank"], codes, cells, np.flatnonzero(slow[codes]), draft.keep, len(tags)):
        in_bar, same = (rows["flags"][of_b] & BAR) > 0, _equal(values[a], values[b])
        again[of_b[in_bar & ~same & evaluated[codes[b]]]] = True
        mine = in_bar & same & ~found_again[b]
        found.append(b[mine])
        owner.append(of_b[mine])
    same_again = np.concatenate(found)
    anew = again[np.concatenate(owner)] & evaluated[codes[same_again]]
    carried: NDArray[Any] = same_again[~anew]
    return carried


class _Twins:
    """Rows of one style at one step: the same line, written twice by two handlers or by several ranks, or two points.

    They are twice the same line if they print the same counters and all their numbers agree, as nearly all such rows of
    the log do. Where most of them differ, as the micro-batches of a step do, equal numbers are a coincidence. Rows that
    print no counter of their own are the same line only if nothing is between them.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.differs = np.zeros(len(draft.rows), bool)
        """Rows with a number that differs from the one before of its tag."""
        self.pairs: list[tuple[NDArray[Any], NDArray[np.intp], NDArray[np.bool_]]] = []

    def of_one_style(self, a: NDArray[np.intp], b: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which pairs of rows have the same style and are no states of a bar."""
        rows, cells, codes = self.draft.rows, self.draft.cells, self.draft.codes
        alike = (rows["flags"][a] & BAR == 0) & (rows["flags"][b] & BAR == 0)
        for name in ("dialect", "level", "count"):
            alike &= rows[name][a] == rows[name][b]
        count = rows["count"][a]
        first = [codes[np.minimum(cells.end[row] - count, len(codes) - 1)] for row in (a, b)]
        found: NDArray[np.bool_] = alike & (first[0] == first[1])
        return found

    def add(self, value: NDArray[Any], a: NDArray[np.intp], b: NDArray[np.intp], same: NDArray[np.bool_]) -> None:
        """Take in pairs of rows of one style, with a value of the second and whether it is that of the first."""
        rows = self.draft.rows
        step, epoch = rows["step"], rows["epoch"]
        here = (step[a] == step[b]) & ((epoch[a] == epoch[b]) | np.isnan(epoch[a]) | np.isnan(epoch[b]))
        placed = (step[b] != NO_STEP) | ~np.isnan(epoch[b])
        here &= placed | (rows["line"][b].astype(np.int64) - rows["line"][a] <= 1)
        same = same & here
        self.differs[b[~same]] = True
        self.pairs.append((value, b, same))

    def repeats(self) -> NDArray[Any]:
        """The values that are printed twice."""
        if not self.pairs:
            return np.empty(0, np.intp)
        value, row, same = (np.concatenate(part) for part in zip(*self.pairs, strict=True))
        again = same & ~self.differs[row]
        tag, n = self.draft.codes[value], len(self.draft.tags)
        mostly = 2 * np.bincount(tag[again], minlength=n) >= np.bincount(tag, minlength=n)
        found: NDArray[Any] = value[again & mostly[tag]]
        return found


def _twice_at_a_step(
    rows: StoredRows, step: NDArray[np.int64], codes: NDArray[np.uint16], cells: Cells, n_tags: int
) -> NDArray[Any]:
    """Indices of values whose tag occurs twice in consecutive rows of one rank and step, and of a few others."""
    rank, filled = rows["rank"], rows["count"] > 0
    found: list[NDArray[Any]] = [np.empty(0, np.intp)]
    left = np.empty(0, np.intp)  # rows of the last step of each rank, which may continue
    stop = 0
    while stop < len(filled):
        start, stop = stop, min(len(filled), stop + max(_ROWS_AT_ONCE, len(left)))
        index = np.concatenate((left, np.flatnonzero(filled[start:stop]) + start))
        index = index[np.argsort(rank[index], kind="stable")]
        who, at = rank[index], step[index]
        new = np.ones(len(index) + 1, bool)
        new[1:-1] = (who[1:] != who[:-1]) | (at[1:] != at[:-1])
        group = np.cumsum(new[:-1]) - 1
        beside = ~(new[:-1] & new[1:])
        if stop < len(filled):
            last = np.zeros(len(index), bool)
            last[group[np.flatnonzero(who[1:] != who[:-1])]] = True
            last[group[-1:]] = True
            left = index[last[group]]
            beside &= ~last[group]
        group, index = group[beside], index[beside]
        some = cells.of(index)
        slot = np.repeat(group, cells.count[index]) * n_tags + codes[some]
        slot %= _SLOTS
        found.append(some[np.bincount(slot)[slot] > 1])
    return np.concatenate(found)


def _pairs_by_tag(
    rank: NDArray[np.int16],
    codes: NDArray[np.uint16],
    cells: Cells,
    index: NDArray[Any],
    keep: NDArray[np.bool_],
    n_tags: int,
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs of consecutive kept values of one tag and rank, some tags at a time. `index` selects the values.

    Yields (the earlier, the later, the row of the earlier, the row of the later).
    """
    code = codes[index]
    turn = (np.cumsum(np.bincount(code, minlength=n_tags)) // _AT_ONCE).astype(np.uint16)
    turns = turn[code] if n_tags else code
    for t in np.flatnonzero(np.bincount(turn)):
        mine = index[turns == t] if turn[-1] else index
        mine = mine[keep[mine]]
        owner = cells.owner_of(mine)
        tag, rank_ = codes[mine], rank[owner]
        order = np.argsort(rank_, kind="stable") if len(rank_) and (rank_ != rank_[0]).any() else None
        # numpy sorts short numbers by counting
        by_tag = np.argsort(tag if order is None else tag[order], kind="stable")
        order = by_tag if order is None else order[by_tag]
        tag, rank_ = tag[order], rank_[order]
        same = np.flatnonzero((tag[1:] == tag[:-1]) & (rank_[1:] == rank_[:-1]))
        mine, owner = mine[order], owner[order]
        yield mine[same], mine[same + 1], owner[same], owner[same + 1]


def same_or_rounded(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether two numbers are equal, or one is the other rounded to fewer decimals or to six digits."""
    return _equal(x, y) | _rounded(x, y)


def _equal(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (x == y) | (np.isnan(x) & np.isnan(y))
    return same


def _rounded(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether one number is the other, rounded to fewer decimals or to six digits."""
    out = np.zeros(len(x), bool)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        close = np.flatnonzero((x != y) & (np.abs(x - y) <= 0.02 * np.maximum(np.abs(x), np.abs(y))))
        u, v = x[close], y[close]
        for digits in range(7):
            half = 0.5000001 * 10.0**-digits  # a printed half may be rounded either way
            out[close] |= (np.abs(u - v) <= half) & ((np.round(u, digits) == u) | (np.round(v, digits) == v))
        scale = 10.0 ** (5 - np.floor(np.log10(np.abs(u))))
        out[close] |= np.isclose(np.round(u * scale), np.round(v * scale), rtol=1e-12, atol=0) & np.isclose(
            u, v, rtol=1e-5
        )
    return out


def _carried_over(tag: str) -> bool:
    """Whether a bar repeats this tag until the next evaluation or epoch."""
    return tag.lower().endswith("_epoch") or _of_evaluations(tag)


def _of_evaluations(tag: str) -> bool:
    """Whether a tag is measured in an evaluation."""
    held_out = (role_of(tag) or "").startswith("val_")
    return held_out or any(w in tag.lower() for w in ("val_", "valid", "eval", "test_", "val/"))
