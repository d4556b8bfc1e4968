"""Values that a log places by an epoch, though other rows of it count steps: ``Epoch 83: val loss 0.35``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers.text.steps.repeats import same_or_rounded
from postmortem.readers.text.steps.row_store import EVALUATION, FRACTIONAL, NO_STEP
from postmortem.readers.text.steps.summaries import whole_epochs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.draft import Draft

_ONCE = 0.9
"""Share of a tag's values that are of another epoch than the one before, if it is logged once an epoch."""
_SELDOM = 0.1
"""The least share of them where the rows name the epoch: with fewer, the epoch tells hardly any of them apart."""


def placed_by_epoch(draft: Draft) -> NDArray[np.intp]:
    """Indices of the kept values that stand at the whole epoch of their row and at no step.

    Their row names the epoch and counts nothing itself but batches of an evaluation, wherever the tag is printed. Or it
    follows a heading that names the epoch, once an epoch: what is printed there more often is told apart by the steps
    around it.
    """
    rows, flags = draft.rows, draft.rows["flags"]
    counts = (rows["step"] != NO_STEP) & (flags & EVALUATION == 0)
    own = whole_epochs(draft.epoch) & ~counts & (flags & FRACTIONAL == 0)
    values: NDArray[np.intp] = draft.cells.of(np.flatnonzero(own & (rows["count"] > 0)))
    values = values[draft.keep[values]]
    if not len(values):
        return values
    codes, n = draft.codes[values], len(draft.tags)
    draft.keep[_repeated_beside(draft, values)] = False
    always = np.bincount(codes, minlength=n) == draft.counts()
    owner = draft.cells.owner_of(values)
    order = np.lexsort((np.arange(len(values)), rows["rank"][owner], codes))
    code, epoch = codes[order], draft.epoch[owner[order]]
    same = code[1:] == code[:-1]
    pairs = np.bincount(code[1:][same], minlength=n)
    moved = np.bincount(code[1:][same & (epoch[1:] != epoch[:-1])], minlength=n)
    named = np.bincount(codes, weights=~np.isnan(rows["epoch"][owner]), minlength=n) == np.bincount(codes, minlength=n)
    once = (moved >= _ONCE * pairs) | (named & (moved >= _SELDOM * pairs))
    found: NDArray[np.intp] = values[(always & once)[codes]]
    return found


def _repeated_beside(draft: Draft, values: NDArray[np.intp]) -> NDArray[np.intp]:
    """Indices of kept values that only repeat one at `values` beside it, for tags of which all others do.

    So does ``Saved the best model, val loss 0.35`` above or below the row of the epoch, and a bar that ends with the
    number of the row, perhaps rounded.
    """
    found = [values[:0]]
    others = np.setdiff1d(np.flatnonzero(draft.keep), values, assume_unique=True)
    for code in np.unique(draft.codes[values]).tolist():
        own, other = values[draft.codes[values] == code], others[draft.codes[others] == code]
        if 0 < len(other) <= len(own):
            after = np.searchsorted(own, other)
            beside = (own[np.maximum(after - 1, 0)], own[np.minimum(after, len(own) - 1)])
            same = np.logical_or(*(same_or_rounded(draft.values[other], draft.values[at]) for at in beside))
            found += [other] if same.all() else []
    return np.concatenate(found)
