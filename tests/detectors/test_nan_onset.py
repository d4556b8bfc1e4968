"""The first NaN of a quantity."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.nan_onset import NanOnset
from tests.detectors.cases import fires, put, quiet, spoiled


@fires(NanOnset, step=200)
def a_loss_that_turns_nan(base):
    return spoiled(base, "train/loss", put(slice(200, None), np.nan))


@quiet(NanOnset)
def nan_before_the_first_number(base):
    """A quantity that is not measured yet is written as NaN by many loggers."""
    return spoiled(base, "val/loss", put(slice(0, 5), np.nan))
