"""Values that a log prints ahead of the row that counts: the learning rate, and below it ``epoch=0/250, loss=1.87``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.roles import role_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.draft import Draft

_FEWEST = 3
"""Rows of a tag that show in which order rows come."""


def printed_ahead(draft: Draft, placed: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows without a position that belong to the next row with one (`placed`), and those rows.

    A known quantity has exactly one of them before each row that counts, from the first one to the last, so that none
    comes after the last: an evaluation before the training and after each epoch has one more.
    """
    filled = draft.rows["count"] > 0
    counted, loose = np.flatnonzero(placed & filled), np.flatnonzero(~placed & filled)
    none: NDArray[np.intp] = np.empty(0, np.intp)
    if not len(counted) or not len(loose) or loose[0] > counted[0]:
        return none, none
    values = draft.cells.of(loose)
    codes, owner = draft.codes[values], draft.cells.owner_of(values)
    found = [none]
    for code in np.unique(codes[owner < counted[0]]).tolist():
        mine = owner[codes == code]
        if len(mine) < _FEWEST or role_of(draft.tags[code]) is None:
            continue
        after = np.searchsorted(counted, mine)
        if np.array_equal(after, np.arange(len(counted))):
            found.append(mine)
    ahead = np.unique(np.concatenate(found))
    return ahead, counted[np.searchsorted(counted, ahead)]


def with_following(step: NDArray[np.int64], ahead: NDArray[np.intp], following: NDArray[np.intp]) -> NDArray[np.int64]:
    """The steps of all rows, those of the rows `ahead` being the ones of the rows `following`."""
    if not len(ahead):
        return step
    step = step.copy()
    step[ahead] = step[following]
    return step


def is_at(rows: NDArray[np.intp], n: int) -> NDArray[np.bool_]:
    """Which of n rows these are."""
    found = np.zeros(n, bool)
    found[rows] = True
    return found
