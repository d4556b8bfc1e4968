"""Positions within an epoch under a name that is not known for one: ``train epoch: 3``, then ``count: 50, loss: 0.4``.

One row does not tell such a number from a metric. Over the whole file it rises evenly from row to row, and falls where
the epoch rises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.roles import role_of
from postmortem.core.stats import median
from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.steps.epochs import carried_epoch
from postmortem.readers.text.steps.row_store import EVALUATION, NO_STEP, WITHIN, Cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.row_store import StoredRows

_FEW, _EVENLY = 10, 0.9
"""Moves within epochs, and the share of them that are alike, which show a counter."""


def with_unnamed_positions(
    rows: StoredRows, codes: NDArray[np.uint16], values: NDArray[np.float64], tags: list[str]
) -> tuple[StoredRows, NDArray[np.intp]]:
    """The rows with such a counter as their step, and the indices of its values; only where no row names a step."""
    nothing = rows, np.empty(0, np.intp)
    filled = np.flatnonzero((rows["count"] > 1) & (rows["flags"] & EVALUATION == 0))
    if len(filled) <= _FEW or (rows["step"] != NO_STEP).any():
        return nothing
    epoch = carried_epoch(rows)
    first = Cells(rows["count"]).end[filled] - rows["count"][filled]
    leads = np.bincount(codes[first], minlength=len(tags))
    code = int(leads.argmax())
    mine = codes[first] == code
    at, found = filled[mine], first[mine]
    n, e = values[found], epoch[at]
    if (
        role_of(tags[code]) is not None
        or leads[code] < 0.5 * len(filled)
        or np.isnan(e).any()
        or not (np.isfinite(n).all() and (n >= 0).all() and (n == np.floor(n)).all() and (n < 2.0**53).all())
        or (rows["rank"][at] != rows["rank"][at[0]]).any()
        or not _counts_in_epochs(e, n)
    ):
        return nothing
    for name, cells in (("step", n.astype(np.int64)), ("level", Trust.LOCAL), ("flags", rows["flags"][at] | WITHIN)):
        column = rows[name].copy()
        column[at] = cells
        rows = rows.with_column(name, column)
    return rows, found


def _counts_in_epochs(epoch: NDArray[np.float64], n: NDArray[np.float64]) -> bool:
    """Whether a number rises evenly within epochs and falls from each to the next."""
    same, rises, moves = epoch[1:] == epoch[:-1], epoch[1:] > epoch[:-1], np.diff(n)
    within = moves[same]
    if len(within) < _FEW or not rises.any() or (moves[rises] >= 0).any():
        return False
    usual = median(within)
    return bool(usual > 0 and (within == usual).mean() > _EVENLY)
