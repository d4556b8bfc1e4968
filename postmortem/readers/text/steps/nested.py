"""Rows with two counters, one of which counts the passes of the other: ``iteration:3 step:200/1044``.

The word alone does not show it: "iteration" is usually trusted more than "step". Over the whole file the outer counter
stands still while the inner one rises, and the inner one starts again where the outer one rises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.steps.row_store import EVALUATION, NO_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.row_store import StoredRows

_FEW = 10
"""Fewer rows show nothing about their counters."""
_LENGTH = 20
"""A pass is at least as long: the micro-batches of a step are fewer, and its counter is the outer one."""


def with_epochs(rows: StoredRows) -> StoredRows:
    """The rows, the outer of two nested counters taken as the epoch and the inner one as the position within it."""
    both = np.flatnonzero(
        (rows["other"] != NO_STEP)
        & (rows["step"] != NO_STEP)
        & np.isnan(rows["epoch"])
        & (rows["level"] < Trust.GLOBAL)
        & (rows["flags"] & EVALUATION == 0)
    )
    if len(both) < _FEW:
        return rows
    kind = rows["dialect"][both].astype(np.int64) * 8 + rows["level"][both]
    for one in distinct(kind):
        mine = both[kind == one]
        step, other = rows["step"][mine], rows["other"][mine]
        if _counts_passes(step, other, rows["rank"][mine], alone=True):
            rows = _outer_alone(_nested(rows, mine, ("step", "total"), ("other", "other_total")), mine, step)
        elif _counts_passes(other, step, rows["rank"][mine]):  # a second number that stays may be the size of batches
            rows = _outer_alone(_nested(rows, mine, ("other", "other_total"), ("step", "total")), mine, other)
    return rows


def _counts_passes(
    outer: NDArray[np.int64], inner: NDArray[np.int64], rank: NDArray[np.int16], alone: bool = False
) -> bool:
    """Whether `outer` counts the passes of `inner`; with `alone` also if there is one pass only."""
    if len(outer) < _FEW or inner.max() < _LENGTH:
        return False
    order = np.argsort(rank, kind="stable")
    outer, inner, rank = outer[order], inner[order], rank[order]
    same_rank = rank[1:] == rank[:-1]
    stays, rises = same_rank & (outer[1:] == outer[:-1]), same_rank & (outer[1:] > outer[:-1])
    on, back = inner[1:] > inner[:-1], inner[1:] < inner[:-1]
    goes_on = stays.sum() >= _FEW // 2 and back[stays].mean() < 0.1 and on[stays].any()
    return bool(goes_on and (back[rises].mean() > 0.9 if rises.any() else alone))


def _nested(rows: StoredRows, mine: NDArray[np.intp], outer: tuple[str, str], inner: tuple[str, str]) -> StoredRows:
    """The rows, in those that are `mine` two counters, named as (number, total), taken as epoch and position."""
    found = {
        "epoch": rows[outer[0]][mine],
        "epochs": rows[outer[1]][mine],
        "step": rows[inner[0]][mine],
        "total": rows[inner[1]][mine],
        "level": np.int8(Trust.LOCAL),
    }
    return _replaced(rows, mine, found)


def _outer_alone(rows: StoredRows, nested: NDArray[np.intp], outer: NDArray[np.int64]) -> StoredRows:
    """The rows, in those that print the outer counter only, as an evaluation may, that number taken as the epoch too.

    `outer` is the outer counter of the rows `nested`: the others agree with the one before or after them.
    """
    alone = (rows["step"] != NO_STEP) & (rows["other"] == NO_STEP)
    own = np.flatnonzero(alone & np.isnan(rows["epoch"]) & (rows["level"] < Trust.GLOBAL))
    for level in distinct(rows["level"][own]):
        mine = own[rows["level"][own] == level]
        after = np.searchsorted(nested, mine)
        near = (outer[np.maximum(after - 1, 0)], outer[np.minimum(after, len(nested) - 1)])
        step = rows["step"][mine]
        if ((step == near[0]) | (step == near[1])).mean() > 0.9:
            none: dict[str, Any] = {"step": NO_STEP, "total": -1, "level": np.int8(Trust.NONE)}
            rows = _replaced(rows, mine, {"epoch": step, "epochs": rows["total"][mine], **none})
    return rows


def _replaced(rows: StoredRows, mine: NDArray[np.intp], found: dict[str, Any]) -> StoredRows:
    """The rows with other cells in columns of those that are `mine`."""
    for name, cells in found.items():
        column = rows[name].copy()
        column[mine] = cells
        rows = rows.with_column(name, column)
    return rows
