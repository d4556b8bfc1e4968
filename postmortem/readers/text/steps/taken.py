"""The points of a file, from its rows and values once their steps are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.points import Points
from postmortem.readers.text.steps.row_store import squeeze

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.draft import Draft

_PIECE = 1 << 16


def taken(draft: Draft, step: NDArray[np.int64], placed: NDArray[np.intp]) -> Points:
    """The kept values as points, with the step of each row; those at the indices `placed` stand at an epoch.

    Takes the draft apart, because memory is at its peak here.
    """
    epoch = draft.epoch[draft.cells.owner_of(placed)].astype(np.int64)
    place = placed if draft.keep.all() or not len(epoch) else np.cumsum(draft.keep)[placed] - 1
    rows, cells, keep, codes, values, tags = (
        draft.rows, draft.cells, draft.keep, draft.codes, draft.values, draft.tags,
    )  # fmt: skip
    rank, wall_time, count = rows["rank"], rows["wall_time"], rows["count"]
    del rows, draft.rows, draft.cells, draft.keep, draft.codes, draft.values, draft.epoch, draft.is_last_state
    if not keep.all():
        count = count.copy()
        np.subtract.at(count, cells.owner_of(np.flatnonzero(~keep)), 1)
        codes, values = squeeze(codes, keep), squeeze(values, keep)
    del keep, cells
    is_used = _used(codes, len(tags))
    if not is_used.all():
        _renumber(codes, (np.cumsum(is_used) - 1).astype(codes.dtype))
    names = [t for t, used in zip(tags, is_used, strict=True) if used]
    points = Points.of_rows(names, codes, values, count, step, wall_time, rank)
    points.epochs = (place.astype(np.int64), epoch) if len(epoch) else None
    return points


def _used(codes: NDArray[np.uint16], n: int) -> NDArray[np.bool_]:
    """Which of n tags occur. Counted in pieces, because numpy widens the codes that it counts."""
    count = np.zeros(n, np.int64)
    for start in range(0, len(codes), _PIECE):
        count += np.bincount(codes[start : start + _PIECE], minlength=n)
    return count > 0


def _renumber(codes: NDArray[np.uint16], new: NDArray[np.uint16]) -> None:
    """Replace each code by new[code], in place."""
    for start in range(0, len(codes), _PIECE):
        codes[start : start + _PIECE] = new.take(codes[start : start + _PIECE])
