"""Bars of a training and of its evaluation that differ in their totals only: ``Loss: 0.4  391/391``, then ``100/100``.

Nothing in such a row says which data it is of. Over the whole file two passes alternate, each from its first batch to
its last: a long one, which begins the epoch, and a shorter one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.roles import role_of
from postmortem.readers.text.records.record import Trust
from postmortem.readers.text.steps.row_store import BAR, EVALUATION, NO_STEP, Cells, Mark, Tag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.row_store import StoredRows

_PASSES = 3
"""Passes of the evaluation that show the pattern."""
_WORD = "val"
_SCORES = ("loss", "val_loss", "accuracy", "perplexity")
_FEW, _NEARLY_ALL = 20, 0.95
"""Rows, and the share of them, that have their counter behind them."""


class Passes(NamedTuple):
    """Rows of a file after its second passes are marked; `replaced` are rows that a later state of the bar replaces."""

    rows: StoredRows
    codes: NDArray[np.uint16]
    tags: list[Tag]
    replaced: NDArray[np.intp]


def second_passes(rows: StoredRows, codes: NDArray[np.uint16], tags: list[Tag], notes: list[str]) -> Passes:
    """Mark the second pass of each epoch as an evaluation: its batches count nothing, and its values have own tags.

    Where the rows of the training are all at the end of a pass, they count nothing either: what counts is the epoch.
    """
    found = _second(rows, codes, tags)
    if found is None:
        return Passes(rows, codes, tags, np.empty(0, np.intp))
    training, held_out = found
    totals = int(rows["total"][training[0]]), int(rows["total"][held_out[0]])
    redrawn = rows["line"][held_out[:-1]] == rows["line"][held_out[1:]]
    replaced = held_out[:-1][redrawn & (rows["step"][held_out[:-1]] < rows["step"][held_out[1:]])]
    mine = np.zeros(len(codes), bool)
    mine[Cells(rows["count"]).of(held_out)] = True
    tags, codes = list(tags), codes.copy()
    for code in distinct(codes[mine]).tolist():
        codes[mine & (codes == code)] = len(tags)
        tags.append(Tag(tags[code].name, Mark.HELD_OUT, _WORD))
    notes.append(
        f"each epoch has a pass of {totals[0]} batches and one of {totals[1]}, and no word says of which data: "
        f"the second is taken for the evaluation, its tags are marked {_WORD}"
    )
    ends = (rows["step"][training] == totals[0]).all() and not np.isnan(rows["epoch"]).all()
    countless = np.concatenate((training, held_out)) if ends else held_out
    for name, nothing in (("step", NO_STEP), ("total", -1), ("level", Trust.NONE)):
        column = rows[name].copy()
        column[countless] = nothing
        rows = rows.with_column(name, column)
    flags = rows["flags"].copy()
    flags[held_out] |= EVALUATION
    return Passes(rows.with_column("flags", flags), codes, tags, replaced)


def counted_behind(rows: StoredRows) -> StoredRows:
    """The rows, those without a counter placed by the one that was printed behind them in the same line.

    A bar that moves the cursor back to print its counter in the middle leaves a row of values and one of a counter.
    """
    plain = rows["flags"] & BAR == 0
    values = (rows["count"] > 0) & (rows["step"] == NO_STEP) & np.isnan(rows["epoch"]) & plain
    counter = (rows["count"] == 0) & (rows["step"] != NO_STEP) & (rows["total"] > 1) & np.isnan(rows["epoch"]) & plain
    pairs = np.flatnonzero(values[:-1] & counter[1:] & (rows["line"][:-1] == rows["line"][1:]))
    if len(pairs) < _FEW or len(pairs) < _NEARLY_ALL * max(values.sum(), counter.sum()):
        return rows
    for name, nothing in (("step", NO_STEP), ("total", -1), ("level", Trust.NONE), ("flags", 0)):
        column = rows[name].copy()
        column[pairs] = column[pairs + 1]
        column[pairs + 1] = nothing
        rows = rows.with_column(name, column)
    return rows


def _second(
    rows: StoredRows, codes: NDArray[np.uint16], tags: list[Tag]
) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """The rows of the first and of the second passes; None where the file is not like that."""
    total = rows["total"]
    counted = (total > 1) & (rows["count"] > 0) & (rows["step"] != NO_STEP) & (rows["level"] < Trust.GLOBAL)
    index = np.flatnonzero(counted & (rows["flags"] & EVALUATION == 0))
    if len(index) < 2 * _PASSES or len(distinct(rows["rank"][index])) > 1:
        return None
    size, n = total[index], rows["step"][index]
    starts = np.flatnonzero(np.concatenate(([True], size[1:] != size[:-1])))
    sizes = size[starts]
    if len(starts) < 2 * _PASSES or len(distinct(size)) != 2 or sizes[0] < sizes[1]:
        return None
    falls = (n[1:] < n[:-1]) & (size[1:] == size[:-1])
    ends = np.concatenate((starts[1:], [len(n)])) - 1
    whole = n[ends[:-1]] >= sizes[:-1] - 1  # a counter may begin at 0
    if falls.any() or not whole.all() or not _within_epochs(rows["epoch"], index[starts]):
        return None
    cells = Cells(rows["count"])
    names = [{tags[code].name for code in distinct(codes[cells.of(index[size == s])])} for s in (sizes[0], sizes[1])]
    scores = {name for name in names[1] if role_of(name) in _SCORES}
    if not scores or scores - names[0]:
        return None  # an evaluation with names of its own needs no mark
    return index[size == sizes[0]], index[size == sizes[1]]


def _within_epochs(epoch: NDArray[np.float64], starts: NDArray[np.intp]) -> bool:
    """Whether no epoch begins between a pass and the second one, if epochs are named; `starts` are the passes' rows."""
    named = np.flatnonzero(~np.isnan(epoch))
    if not len(named):
        return True
    last = epoch[named[np.maximum(np.searchsorted(named, starts, side="right") - 1, 0)]]
    pairs = len(starts) // 2
    first, second = last[: 2 * pairs : 2], last[1 : 2 * pairs : 2]
    return bool((first == second).all() and (np.diff(first) > 0).all())
