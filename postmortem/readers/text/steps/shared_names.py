"""One name in rows of the training and of its evaluation: ``Train acc: 0.8 | loss: 1``, ``Valid acc: 0.7 | loss: 2``.

A row alone does not tell of which data such a loss is: ``Test acc: 0.9 | loss: 0.3`` may name the training's. Where
other rows of the file print the same name beside names of the training only, each has its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.roles import role_of
from postmortem.readers.text.records.step_words import HELD_OUT, SPLITS

if TYPE_CHECKING:
    from postmortem.readers.text.steps.draft import Draft

_FEW = 3
"""Rows of each kind that show the pattern."""
_SHARED = ("loss", "accuracy", "perplexity", None)


def set_shared_apart(draft: Draft) -> None:
    """Give values that share a name with values of the training, but are in rows of an evaluation, own tags."""
    words = [_split(tag) for tag in draft.tags]
    held_out = np.array([word in HELD_OUT for word in words], bool)
    trained = np.array([bool(word) and word not in HELD_OUT for word in words], bool)
    if not held_out.any() or not trained.any():
        return
    owner, n = draft.cells.owner(), len(draft.rows)
    kept = draft.keep
    of_held_out = np.bincount(owner[kept & held_out[draft.codes]], minlength=n) > 0
    of_training = np.bincount(owner[kept & trained[draft.codes]], minlength=n) > 0
    for code, tag in enumerate(list(draft.tags)):
        if words[code] or role_of(tag) not in _SHARED or draft.marks[code]:
            continue
        mine = np.flatnonzero(kept & (draft.codes == code))
        evaluated, fitted = of_held_out[owner[mine]], of_training[owner[mine]]
        if (evaluated & fitted).any() or min(evaluated.sum(), fitted.sum()) < _FEW:
            continue
        row = int(owner[mine[evaluated][0]])
        beside = draft.codes[draft.cells.of(np.array([row]))]
        first = next(words[c] for c in beside[beside < len(words)].tolist() if held_out[c])  # later ones are set apart
        values = np.zeros(len(draft.codes), bool)
        values[mine[evaluated]] = True
        draft.set_apart(values, first)


def _split(tag: str) -> str:
    """The word for the data with which a tag begins, in small letters; "" if it begins with none."""
    word = re.split(r"[\W_]+", tag.lower(), maxsplit=1)[0]
    return word if word in SPLITS else ""
