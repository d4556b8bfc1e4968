"""Rows that sum up an epoch or an evaluation, told apart from those of the training's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct, without
from postmortem.core.roles import role_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.draft import Draft

SCORES = ("loss", "val_loss", "accuracy", "perplexity", "reward")
"""Roles of what a training prints of its success."""
_MANY, _RARE = 50, 0.02
_PER_EPOCH = 3
"""So many values of a tag in rows with a step, and a smaller share of them in rows without, are two kinds of rows."""


def whole_epochs(epoch: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where an epoch is known and has no fraction."""
    whole: NDArray[np.bool_] = epoch == np.floor(epoch)
    return whole


def summaries(draft: Draft, exact: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The few values of losses and scores in rows without a step, where nearly all others are in rows with one.

    They sum up an epoch or an evaluation, in a block of their own: no points of the training's series. So do rows
    that name a whole epoch, one an epoch (``EPOCH 2 done: loss 0.0007``).
    """
    found = np.zeros(len(draft.codes), bool)
    loose = draft.cells.of(np.flatnonzero(~exact & (draft.rows["count"] > 0)))
    loose = loose[draft.keep[loose]]
    apart = np.bincount(draft.codes[loose], minlength=len(draft.tags))
    fine = np.array([n > 0 and role_of(t) in SCORES for t, n in zip(draft.tags, apart.tolist(), strict=True)], bool)
    if fine.any():
        stepped = draft.counts() - apart
        rare = (stepped >= _MANY) & (apart <= _RARE * stepped)
        fine &= rare | ((stepped >= _PER_EPOCH * apart) & _once_an_epoch(draft, loose))
        found[loose[fine[draft.codes[loose]]]] = True
    return found


def _once_an_epoch(draft: Draft, loose: NDArray[np.intp]) -> NDArray[np.bool_]:
    """For each tag whether its values at `loose` are in rows that name a whole epoch, none of them named twice.

    It may be named again after more steps of it: by another attempt, fold or program that is appended to the log.
    """
    epoch = np.where(whole_epochs(draft.epoch), draft.epoch, np.nan)[draft.cells.owner()[loose]]
    codes = draft.codes[loose]
    failed = np.bincount(codes[np.isnan(epoch)], minlength=len(draft.tags)) > 0
    for code in distinct(codes[~failed[codes]]).tolist():
        mine = codes == code
        at, named = loose[mine], epoch[mine]
        stepped = without(np.flatnonzero((draft.codes == code) & draft.keep), at)
        before = np.searchsorted(stepped, at)
        order = np.lexsort((at, named))  # of each epoch, one after the other
        again = named[order][1:] == named[order][:-1]
        failed[code] = bool((again & (before[order][1:] == before[order][:-1])).any())
    return ~failed


def of_training(draft: Draft) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The epoch of each row, and which rows tell how far the training came.

    Rows of earlier epochs after the last loss are an evaluation of saved checkpoints: they have no epoch here.
    """
    losses = np.array([role_of(tag) == "loss" for tag in draft.tags], bool)
    at = np.flatnonzero(losses[draft.codes])[-1:]
    if not len(at):
        return draft.epoch, draft.is_last_state
    last = int(draft.cells.owner_of(at)[0])
    again = draft.epoch[last + 1 :] < draft.epoch[last]
    if not again.any():
        return draft.epoch, draft.is_last_state
    epoch, last_states = draft.epoch.copy(), draft.is_last_state.copy()
    epoch[last + 1 :][again] = np.nan
    last_states[last + 1 :][again] = False
    return epoch, last_states
