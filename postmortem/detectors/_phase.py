"""Whether a new phase of the training began at a step: layers thawed, a new head, another data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from postmortem.core.view import View


def new_phase(view: View, step: int, ratio: float = 1.5) -> bool:
    """Whether the learning rate was set anew within three rows of `step` and the loss did not get worse by it.

    Gradient norms of two phases have different levels: more parameters, another loss. That is no explosion.
    """
    raw, train = view.main("lr"), view.main("loss")
    if raw is None or train is None:
        return False
    rate, loss = raw.finite, train.finite
    at = int(np.searchsorted(rate.step, step))
    x = rate.value[max(0, at - 4) : at + 4]
    if len(x) < 2 or x.min() <= 0 or float(np.abs(np.diff(np.log(x))).max()) < np.log(ratio):
        return False
    before, after = loss.value[loss.step < step], loss.value[loss.step >= step]
    return bool(len(before) > 2 and len(after) > 4 and np.median(after[-len(after) // 2 :]) <= np.median(before[-10:]))
